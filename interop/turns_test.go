//go:build interop

package interop

import (
	"fmt"
	"testing"

	"github.com/gantrymq/gantry/internal/golden"
	"github.com/gantrymq/gantry/interop/javastore"
)

// puts is how many puts one turn makes: every kind several times.
const puts = 5 * kinds

func javaStore(t *testing.T, version string) *javastore.Store {
	t.Helper()
	java, err := javastore.Build(t.Context(), version)
	if err != nil {
		t.Fatal(err)
	}
	return java
}

// wide reports whether a version reads the second record format.
func wide(version string) bool { return golden.CompareVersions(version, "5.0.0") >= 0 }

// TestJavaReadsOurs: Java opens a store that we have closed, or that was left
// by SIGKILL, reads every message and answers as we do afterwards.
func TestJavaReadsOurs(t *testing.T) {
	for _, version := range javastore.Versions {
		for _, killAfter := range []int{0, 1, puts} {
			t.Run(fmt.Sprintf("%s/killAfter=%d", version, killAfter), func(t *testing.T) {
				t.Parallel()
				java := javaStore(t, version)
				h := &history{wide: wide(version)}
				task := writerTask{Dir: t.TempDir(), Config: small(), Seed: 1, Count: puts, Wide: h.wide}
				if killAfter > 0 {
					h.ours = writeAndKill(t, task, killAfter)
					removeEmptyFiles(t, task.Dir, version)
				} else {
					h.ours = write(t, task)
				}
				a, err := java.Read(t.Context(), task.Dir, task.Config, h.questions(version).Questions)
				if err != nil {
					t.Fatal(err)
				}
				checkRead(t, a, h)
				s := open(t, task.Dir, task.Config)
				if r := s.Recovery(); !r.CleanStop || len(r.Repaired) > 0 || r.Truncated > 0 {
					t.Errorf("after Java's clean stop: %+v", r)
				}
				compare(t, s, a, version, task.Config)
				closeAndCheck(t, s, task.Config)
			})
		}
	}
}

// TestOursReadsJava: we open a store that Java has closed or left by halting,
// read everything, and Java then agrees.
func TestOursReadsJava(t *testing.T) {
	for _, version := range javastore.Versions {
		for _, crashed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/crashed=%t", version, crashed), func(t *testing.T) {
				t.Parallel()
				java := javaStore(t, version)
				dir, c := t.TempDir(), small()
				run := java.Append
				if crashed {
					run = java.Crash
				}
				put, err := run(t.Context(), dir, c, nil, puts, 1)
				if err != nil {
					t.Fatal(err)
				}
				checkPuts(t, put, puts)
				s := open(t, dir, c)
				if r := s.Recovery(); r.CleanStop == crashed || !r.ForeignWriter || r.Truncated > 0 {
					t.Errorf("after Java: %+v", r)
				}
				comparePuts(t, s, put.Puts)
				if _, end := s.Range(); end != put.MaxPhysicalOffset {
					t.Errorf("our log ends at %d, Java's at %d", end, put.MaxPhysicalOffset)
				}
				closeAndCheck(t, s, c)
				h := &history{java: put.Puts}
				a, err := java.Read(t.Context(), dir, c, h.questions(version).Questions)
				if err != nil {
					t.Fatal(err)
				}
				checkRead(t, a, h)
				s = open(t, dir, c)
				compare(t, s, a, version, c)
				closeAndCheck(t, s, c)
			})
		}
	}
}

// TestTurns: both write to one directory in turns and die in turns; whoever
// comes next finds everything that was promised.
func TestTurns(t *testing.T) {
	const rounds = 2
	for _, version := range javastore.Versions {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			java := javaStore(t, version)
			h := &history{wide: wide(version)}
			task := writerTask{Dir: t.TempDir(), Config: small(), Count: puts, Wide: h.wide}
			for round := range int64(rounds) {
				// We write and close, Java appends and closes.
				task.Seed = 10 * round
				h.ours = append(h.ours, write(t, task)...)
				a, err := java.Append(t.Context(), task.Dir, task.Config, nil, puts, 10*round+1)
				if err != nil {
					t.Fatal(err)
				}
				checkPuts(t, a, puts)
				h.java = append(h.java, a.Puts...)

				// We write and are killed, Java recovers, appends and halts.
				task.Seed = 10*round + 2
				h.ours = append(h.ours, writeAndKill(t, task, puts)...)
				removeEmptyFiles(t, task.Dir, version)
				if a, err = java.Crash(t.Context(), task.Dir, task.Config, nil, puts, 10*round+3); err != nil {
					t.Fatal(err)
				}
				checkPuts(t, a, puts)
				h.java = append(h.java, a.Puts...)

				// We recover what Java left, are killed while writing, and recover that too.
				task.Seed = 10*round + 4
				h.ours = append(h.ours, writeAndKill(t, task, kinds)...)
				s := open(t, task.Dir, task.Config)
				comparePuts(t, s, h.java)
				closeAndCheck(t, s, task.Config)

				// Java reads all of it, and we agree.
				if a, err = java.Read(t.Context(), task.Dir, task.Config, h.questions(version).Questions); err != nil {
					t.Fatal(err)
				}
				checkRead(t, a, h)
				s = open(t, task.Dir, task.Config)
				compare(t, s, a, version, task.Config)
				closeAndCheck(t, s, task.Config)
			}
		})
	}
}

// TestVersionsTakeTurns: one directory goes from the oldest version to the
// newest, and through us before and after each.
func TestVersionsTakeTurns(t *testing.T) {
	t.Parallel()
	h := &history{}
	task := writerTask{Dir: t.TempDir(), Config: small(), Count: puts}
	for i, version := range javastore.Versions {
		task.Seed = int64(100 + 2*i)
		h.ours = append(h.ours, write(t, task)...)
		a, err := javaStore(t, version).Append(t.Context(), task.Dir, task.Config, nil, puts, task.Seed+1)
		if err != nil {
			t.Fatal(err)
		}
		checkPuts(t, a, puts)
		h.java = append(h.java, a.Puts...)
	}
	s := open(t, task.Dir, task.Config)
	comparePuts(t, s, h.java)
	closeAndCheck(t, s, task.Config)
	newest := javastore.Versions[len(javastore.Versions)-1]
	q := h.questions(newest)
	q.TagQueries = nil // the older versions did not index tags
	a, err := javaStore(t, newest).Read(t.Context(), task.Dir, task.Config, q.Questions)
	if err != nil {
		t.Fatal(err)
	}
	checkRead(t, a, h)
	s = open(t, task.Dir, task.Config)
	compare(t, s, a, newest, task.Config)
	closeAndCheck(t, s, task.Config)
}
