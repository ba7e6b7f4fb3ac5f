package commitlog
import ("testing";"context";"syscall";"time";"fmt"
"github.com/gantrymq/gantry/internal/vfs"
"github.com/gantrymq/gantry/message")
func cpu() float64 { var r syscall.Rusage; syscall.Getrusage(0,&r); return float64(r.Utime.Sec+r.Stime.Sec)+float64(r.Utime.Usec+r.Stime.Usec)/1e6 }
func TestDbgCPU(t *testing.T){
 for _, body := range []int{128,1024,65536} {
	opts := Options{FS: vfs.OS(), Dirs: []string{t.TempDir()}, FileSize: 256<<20}
	l,_,_ := Open(opts); l.SetEnd(0,0)
	n:=0
	c0:=cpu()
	for p := newBenchPut(t, body); l.End() < 4*256<<20; n++ { if _,_,err := l.Append(len(p.rec), p); err!=nil {t.Fatal(err)} }
	c1:=cpu()
	l.Close()
	best, bw := 1e9, time.Hour
	for i:=0;i<6;i++ {
	 l,_,_ := Open(opts); a:=cpu(); s:=time.Now()
	 tail,err := l.FindTail(context.Background(), 0, ScanOptions{Check: message.CheckOptions{BodyCRC:true}})
	 if err!=nil||tail.Reason!=nil {t.Fatal(err)}
	 if d:=time.Since(s); d<bw {bw=d}
	 if d:=cpu()-a; d<best {best=d}
	 l.Close()
	}
	fmt.Printf("body %d: append CPU %.0f ns/op incl. populate and flush, find tail CPU %.3f s/GiB, best wall %v\n", body, (c1-c0)/float64(n)*1e9, best, bw)
 }
}
