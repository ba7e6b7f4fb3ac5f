package indexfile
import ("testing";"math/rand/v2";"time";"os";"strconv";"fmt";"github.com/gantrymq/gantry/internal/vfs/faultfs";"github.com/gantrymq/gantry/internal/vfs/memfs")
var lastSoak string
func TestSoak(t *testing.T){
 t.Cleanup(func(){ t.Log(lastSoak)})
 if os.Getenv("SOAK")=="" { t.Skip() }
 d,_:=time.ParseDuration(os.Getenv("SOAK"))
 seed:=uint64(time.Now().UnixNano())
 if v:=os.Getenv("SEED"); v!="" { seed,_=strconv.ParseUint(v,10,64) }
 for end:=time.Now().Add(d); time.Now().Before(end); seed++ {
  rnd:=rand.New(rand.NewPCG(seed,1))
  g:=Geometry{1+rnd.Int32N(3000), 2+rnd.Int32N(400)}
  if rnd.IntN(2)==0 { g=Geometry{1+rnd.Int32N(60),2+rnd.Int32N(60)} }
  ps:=randomPuts(rnd, 20+rnd.IntN(150))
  mem:=memfs.NewCrashable(int64(seed))
  k:=rnd.IntN(900)
  fs:=faultfs.CrashAt(mem,k)
  e:=newEnv(fs,g.Slots,g.Entries)
  run:=e.workload(ps,1+rnd.IntN(20))
  if len(run.puts)==0 {continue}
  for _,policy:=range memfs.Policies(){ for _,tr:=range []bool{true,false}{
   after:=mem.CrashClone(policy,int64(seed))
   lastSoak=fmt.Sprintf("seed %d geo %v k %d policy %v trusted %v",seed,g,k,policy,tr)
   verifyAfterCrash(t,after,e,run,tr)
   if t.Failed(){ t.Fatalf("seed %d geo %v k %d policy %v trusted %v",seed,g,k,policy,tr)}
  }}
 }
}
