//go:build unix

package cli

import (
	"bytes"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

// TestStoreFigures is skipped without -storefigures: it wants a quiet machine, and
// room for three times the store.
var (
	storeFigures = flag.Bool("storefigures", false, "measure the offline commands: go test ./internal/cli -run TestStoreFigures -storefigures -storebytes 8589934592 -v -timeout 1h")
	storeBytes   = flag.Int64("storebytes", 1<<30, "bytes of the log that TestStoreFigures makes")
	storeBody    = flag.Int("storebody", 1<<10, "about how many bytes its bodies have")
	storeDir     = flag.String("storedir", "", "folder that keeps the store of TestStoreFigures, and gets all that it writes")
)

// Bounds that do not depend on the machine.
const (
	minVerifyShare = 0.5   // of the speed of reading the same bytes and computing their CRC on as many cores
	maxToolRSS     = 128.0 // MiB
)

// TestStoreFigures makes a large store, runs the offline commands on it, and prints
// for each the time, the rate, the ratio to the limit, and the most memory that it
// had. The limit is measured in the same run.
func TestStoreFigures(t *testing.T) {
	if !*storeFigures {
		t.Skip("takes long, and wants a quiet machine: -storefigures")
	}
	program := buildGantry(t)
	work := t.TempDir()
	if *storeDir != "" {
		work = *storeDir
	}
	dir := filepath.Join(work, fmt.Sprintf("store-%d-%d", *storeBytes, *storeBody))
	if _, err := os.Stat(dir); err != nil {
		began := time.Now()
		makeLargeStore(t, dir)
		t.Logf("made in %v", time.Since(began).Round(time.Second))
	}
	info := jsonLines[infoJSON](t, string(runTool(t, program, exitOK, "store", "info", dir, "--json").out))[0]
	n := info.Messages

	all, log := dataFiles(t, dir), dataFiles(t, filepath.Join(dir, "commitlog"))
	crcFiles(t, all) // warms the page cache
	limit, logLimit := crcFiles(t, all), crcFiles(t, log)
	for range 2 {
		limit, logLimit = min(limit, crcFiles(t, all)), min(logLimit, crcFiles(t, log))
	}
	total, logTotal := sizeOf(all), sizeOf(log)
	t.Logf("%d messages; log %.2f GB, with queues and index %.2f GB; %d cores", n, gb(logTotal), gb(total), runtime.GOMAXPROCS(0))
	t.Logf("%-30s %8s %8s %9s %11s %7s %9s", "command", "time", "CPU", "MB/s", "messages/s", "ratio", "peak MiB")
	row := func(name string, took, cpu time.Duration, bytes int64, messages int64, limit time.Duration, rss float64) {
		per := func(n int64, unit float64) string {
			if n == 0 {
				return "-"
			}
			return fmt.Sprintf("%.0f", float64(n)/unit/took.Seconds())
		}
		t.Logf("%-30s %7.2fs %7.2fs %9s %11s %7.2f %9.0f", name, took.Seconds(), cpu.Seconds(), per(bytes, 1e6), per(messages, 1), limit.Seconds()/took.Seconds(), rss)
	}
	row("limit: CRC of all", limit, 0, total, 0, limit, 0)
	row("limit: CRC of the log", logLimit, 0, logTotal, 0, logLimit, 0)

	out := func(name string) string { return filepath.Join(work, name) }
	remove := func(name string) {
		if err := os.RemoveAll(out(name)); err != nil {
			t.Error(err)
		}
	}
	// withoutQueues is the store without all that is derived from the log.
	withoutQueues := out("log-only")
	linkLog(t, dir, withoutQueues)
	defer remove("log-only")
	damaged := out("damaged")
	for _, c := range []struct {
		name  string
		bytes int64 // that it must read
		limit time.Duration
		exit  int
		args  []string
		made  string // is removed again
		share float64
	}{
		{"info", 0, limit, exitOK, []string{"info", dir}, "", 0},
		{"verify --quick", 0, limit, exitOK, []string{"verify", dir, "--quick"}, "", 0},
		{"verify", total, limit, exitOK, []string{"verify", dir}, "", minVerifyShare},
		{"verify --deep", total, limit, exitOK, []string{"verify", dir, "--deep"}, "", 0},
		{"grep --body TEXT", logTotal, logLimit, exitOK, []string{"grep", dir, "--body", "needle-4711", "-n", "0"}, "", 0},
		{"grep --body REGEXP", logTotal, logLimit, exitOK, []string{"grep", dir, "--body", `[a-z]+le-\d`, "-n", "0"}, "", 0},
		{"export --format ndjson", logTotal, logLimit, exitOK, []string{"export", dir, "--out", out("export.ndjson")}, "export.ndjson", 0},
		{"export --format csv", logTotal, logLimit, exitOK, []string{"export", dir, "--format", "csv", "--out", out("export.csv")}, "export.csv", 0},
		{"diff with itself", total, limit, exitOK, []string{"diff", dir, dir}, "", 0},
		{"recover --dry-run, clean", 0, limit, exitOK, []string{"recover", "--dry-run", dir}, "", 0},
		{"recover --dry-run, log only", logTotal, logLimit, exitFound, []string{"recover", "--dry-run", withoutQueues}, "", 0},
		{"rebuild --out", logTotal, logLimit, exitOK, []string{"rebuild", dir, "--out", out("rebuilt")}, "rebuilt", 0},
		{"rebuild --in-place", logTotal, logLimit, exitOK, []string{"rebuild", withoutQueues, "--in-place"}, "", 0},
		{"repair --out, one bit flipped", total, limit, exitFound, []string{"repair", damaged, "--out", out("repaired")}, "repaired", 0},
	} {
		if c.args[1] == damaged {
			damageLog(t, dir, damaged)
			defer remove("damaged")
		}
		r := runTool(t, program, c.exit, append([]string{"store"}, c.args...)...)
		for tries := 1; c.share > 0 && tries < 3; tries++ { // the fastest of three, as the limit is
			again := runTool(t, program, c.exit, append([]string{"store"}, c.args...)...)
			again.rss = max(again.rss, r.rss)
			if again.took < r.took {
				r = again
			}
		}
		messages := n
		if c.bytes == 0 {
			messages = 0
		}
		row(c.name, r.took, r.cpu, c.bytes, messages, c.limit, r.rss)
		if c.share > 0 && c.limit.Seconds()/r.took.Seconds() < c.share {
			t.Errorf("%s: less than %.0f %% of the limit", c.name, 100*c.share)
		}
		if r.rss > maxToolRSS {
			t.Errorf("%s: %.0f MiB, the bound is %.0f", c.name, r.rss, maxToolRSS)
		}
		if c.made != "" {
			remove(c.made)
		}
	}
}

func gb(n int64) float64 { return float64(n) / 1e9 }

// makeLargeStore writes a store: bodies of words, every thousandth with a needle,
// a unique key, a key and a tag, in 400 queues of 50 topics.
func makeLargeStore(t *testing.T, dir string) {
	t.Helper()
	s, err := gantry.Open(t.Context(), dir, &gantry.Options{DiskWarningPercent: 100, DiskCleanForciblyPercent: 100, CleanInterval: -1})
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	words := strings.Fields("order customer price street city item total the of")
	var text []byte
	for len(text) < 64<<10+*storeBody {
		text = append(append(text, words[rng.IntN(len(words))]...), ' ')
	}
	for i, end := 0, message.PhysicalOffset(0); int64(end) < *storeBytes; i++ {
		from := rng.IntN(64 << 10)
		body := bytes.Clone(text[from : from+*storeBody])
		if i%1000 == 0 {
			copy(body, "needle-4711 ")
		}
		res, err := s.Put(t.Context(), &message.Message{
			Topic: fmt.Sprintf("Topic%d", i%50), QueueID: int32(i / 50 % 8), Body: body,
			Properties: message.NewProperties(message.PropKeys, fmt.Sprintf("key%d", i), message.PropUniqKey, fmt.Sprintf("7F0000014E7B18B4AAC2%012X", i), message.PropTags, "TagA"),
		})
		if err != nil {
			t.Fatal(err)
		}
		end = res.PhysicalOffset
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// dataFiles lists the files below dir that have something allocated.
func dataFiles(t *testing.T, dir string) (files []string) {
	t.Helper()
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() && info.Sys().(*syscall.Stat_t).Blocks > 0 {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func sizeOf(files []string) (total int64) {
	for _, name := range files {
		if info, err := os.Stat(name); err == nil {
			total += info.Sys().(*syscall.Stat_t).Blocks * 512
		}
	}
	return total
}

// crcFiles reads the files, but not their holes, and computes checksums, on all
// cores.
func crcFiles(t *testing.T, files []string) time.Duration {
	t.Helper()
	const part = 16 << 20
	type job struct {
		name string
		off  int64
	}
	var jobs []job
	for _, name := range files {
		f, err := vfs.OS().Open(name, vfs.ReadOnly)
		if err != nil {
			t.Fatal(err)
		}
		size, _ := f.Size()
		for off := int64(0); off < size; off = off/part*part + part {
			if off, err = f.NextData(off); err != nil {
				t.Fatal(err)
			}
			if off < size {
				jobs = append(jobs, job{name, off})
			}
		}
		f.Close()
	}
	began := time.Now()
	var next atomic.Int64
	var group sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		group.Go(func() {
			p := make([]byte, 256<<10)
			for {
				i := int(next.Add(1)) - 1
				if i >= len(jobs) {
					return
				}
				f, err := os.Open(jobs[i].name)
				if err != nil {
					t.Error(err)
					return
				}
				r := io.NewSectionReader(f, jobs[i].off, part-jobs[i].off%part)
				sum := uint32(0)
				for {
					n, err := r.Read(p)
					sum = crc32.Update(sum, crc32.IEEETable, p[:n])
					if err != nil {
						break
					}
				}
				f.Close()
			}
		})
	}
	group.Wait()
	return time.Since(began)
}

// toolRun is one run of the program.
type toolRun struct {
	took time.Duration
	cpu  time.Duration // of all cores
	rss  float64       // MiB, the most
	out  []byte
}

func runTool(t *testing.T, program string, exit int, args ...string) toolRun {
	t.Helper()
	cmd := exec.Command(program, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	began := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// What the system says of an ended child has what it had of ours before exec.
	r := toolRun{}
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			r.rss = max(r.rss, peakRSS(cmd.Process.Pid))
			select {
			case <-tick.C:
			case <-ended:
				return
			}
		}
	}()
	_ = cmd.Wait() // the exit code is looked at
	r.took, r.out = time.Since(began), stdout.Bytes()
	r.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	close(ended)
	<-done
	if got := cmd.ProcessState.ExitCode(); got != exit {
		t.Fatalf("%q: exit code %d, want %d\n%.2000s\n%.2000s", args, got, exit, stdout.Bytes(), stderr.Bytes())
	}
	return r
}

// peakRSS is the most memory that a process has had, in MiB, or 0 where /proc does
// not tell.
func peakRSS(pid int) float64 {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(data), "VmHWM:")
	kib := 0.0
	fmt.Sscan(rest, &kib) //nolint:errcheck // 0 will do
	return kib / 1024
}

// linkLog makes a store of the log alone, by hard links.
func linkLog(t *testing.T, dir, to string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "commitlog", "*"))
	if err == nil {
		err = os.MkdirAll(filepath.Join(to, "commitlog"), 0o755)
	}
	for _, name := range files {
		if err == nil {
			err = os.Link(name, filepath.Join(to, "commitlog", filepath.Base(name)))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// damageLog makes a copy with a bit flipped in the first file of the log; the
// other files are links.
func damageLog(t *testing.T, dir, to string) {
	t.Helper()
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		if info.IsDir() {
			return os.MkdirAll(filepath.Join(to, rel), 0o755)
		}
		return os.Link(path, filepath.Join(to, rel))
	})
	name := filepath.Join(to, "commitlog", strings.Repeat("0", 20))
	var data []byte
	if err == nil {
		data, err = os.ReadFile(name)
	}
	if err == nil {
		err = os.Remove(name)
	}
	if err == nil {
		data[len(data)/2] ^= 1
		err = os.WriteFile(name, data, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}
