package tool

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/check"
	"github.com/gantrymq/gantry/internal/consumequeue"
	"github.com/gantrymq/gantry/internal/golden"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

var allDamages = flag.Bool("damage.all", false, "make every damage in every golden store, and print what came of it as a table")

// TestDamages makes every damage, and checks that verify names it, that the dry
// run tells the truth, and that the repaired store is healthy and has every
// message that is still intact.
func TestDamages(t *testing.T) {
	names, err := golden.Names()
	if err != nil {
		t.Fatal(err)
	}
	type tally struct{ cases, found, mended int }
	table := map[string]*tally{}
	for i, damage := range damages {
		order, wanted := names, len(names)
		if !*allDamages {
			order, wanted = sampled(names, i), samples
		}
		for _, name := range order {
			if wanted == 0 {
				break
			}
			b := loadBase(t, name)
			d := b.damager(t)
			if !damage.do(d) {
				continue
			}
			wanted--
			lost := LostGap
			if i%2 == 1 {
				lost = LostPlaceholder
			}
			t.Run(damage.rule+" "+damage.name+"/"+name, func(t *testing.T) {
				d.tb = t
				got := d.judge(b, damage.found, damage.stays, lost)
				key := damage.rule + " | " + damage.name
				if table[key] == nil {
					table[key] = &tally{}
				}
				c := table[key]
				c.cases++
				if got.found {
					c.found++
				}
				if got.mended {
					c.mended++
				}
			})
		}
	}
	if *allDamages {
		fmt.Fprintln(os.Stdout, "\n| rule | damage | stores | found | mended |\n|---|---|---|---|---|")
		for _, damage := range damages {
			if c := table[damage.rule+" | "+damage.name]; c != nil {
				fmt.Fprintf(os.Stdout, "| %s | %s | %d | %d | %d |\n", damage.rule, damage.name, c.cases, c.found, c.mended)
			}
		}
	}
}

// judge runs all tools on a damaged store.
func (d *damager) judge(b baseStore, rule string, stays []string, lost Lost) (out damageOutcome) {
	t := d.tb
	was, _ := (&damager{t, b.m, b.fs, d.dirs}).verify("/s", nil)
	found, _ := d.verify("/s", nil)
	for r := range found {
		out.found = out.found || rule != "" && strings.HasPrefix(r, rule)
	}
	if rule != "" && !out.found && d.m.MinPhysicalOffset == 0 { // else it may be in what has expired
		t.Errorf("verify does not name the damage: want %s among %v", rule, found)
	}
	out.found = out.found || len(found) > len(was)
	before := d.tree("/s")
	d.predict(gantry.RefuseDamage)
	if _, ok := found["log.torn"]; !ok { // else it is the same
		d.predict(gantry.QuarantineDamage)
	}
	intact := d.intact(b)
	sum, err := Repair(t.Context(), RepairOptions{Dir: "/s", Out: "/n", Lost: lost, Store: d.options(), Event: func(e Event) { t.Logf("%+v %+v", e, e.EventMessage) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", sum)
	if diff := golden.DiffTrees(before, d.tree("/s")); len(diff) > 0 {
		t.Errorf("the source has changed: %q", diff)
	}
	out.mended = true
	after, _ := d.verify("/n", func(f check.Finding) { t.Log("repaired:", f) })
	for r, sev := range after {
		switch {
		case sev < check.Warning, sev <= was[r]:
		case slices.Contains(stays, r):
			out.mended = false
		case sev == check.Warning && (r == "log.time" || r == "log.topic"):
			out.mended = false // fields that nothing vouches for
		default:
			out.mended = false
			t.Errorf("repaired store: %s %s", sev, r)
		}
	}
	d.readAll(b, intact, slices.Contains(stays, "config.json"))
	return out
}

// readAll opens the repaired store and reads every message that was intact.
func (d *damager) readAll(b baseStore, intact []*golden.Message, warned bool) {
	t := d.tb
	o := storeOptions(d.fs, d.m, "/n")
	s, err := gantry.Open(t.Context(), "/n", &o)
	if err != nil {
		t.Fatalf("the repaired store does not open: %v", err)
	}
	defer s.Close()
	if r := s.Recovery(); !r.CleanStop || r.ForeignWriter || r.Replayed > 0 || r.Truncated > 0 || len(r.Repaired)+len(r.Quarantined) > 0 || len(r.Warnings) > 0 && !warned {
		t.Errorf("opening the repaired store: %+v", r)
	}
	bad := 0
	for _, m := range intact {
		ext, err := s.MessageAt(m.PhysicalOffset)
		if err != nil || m.Diff(&ext) != "" {
			if bad++; bad < 5 {
				t.Errorf("message at %d: %v", m.PhysicalOffset, err)
			}
			continue
		}
		if !m.SysFlag.Queued() || m.SysFlag&message.InnerBatch != 0 {
			continue
		}
		res, err := s.Get(m.Topic, m.QueueID, m.QueueOffset, gantry.GetOptions{Max: 1})
		if err != nil || len(res.Records) != 1 || !bytes.Equal(res.Records[0].Bytes, b.bytesAt(t, int64(m.PhysicalOffset), m.Size)) {
			if bad++; bad < 5 {
				t.Errorf("get %s/%d offset %d, position %d: %v, %v", m.Topic, m.QueueID, m.QueueOffset, m.PhysicalOffset, res.Status, err)
			}
		}
	}
	if bad > 0 {
		t.Errorf("%d of %d intact messages cannot be read", bad, len(intact))
	}
}

// TestPredictGolden compares the dry run with opening for undamaged stores.
func TestPredictGolden(t *testing.T) {
	eachStore(t, func(t *testing.T, name string) {
		d := loadBase(t, name).damager(t)
		before := d.tree("/s")
		p := d.predict(gantry.RefuseDamage)
		d.predict(gantry.QuarantineDamage)
		if diff := golden.DiffTrees(before, d.tree("/s")); len(diff) > 0 {
			t.Errorf("the store has changed: %q", diff)
		}
		if !d.m.IndexesTags() {
			p.Index = nil // the newest message gets its tag into the index
		}
		if p.Changes() && d.m.Kind != golden.Crash && name != "5.4.0-badtopic" {
			t.Errorf("opening a store that was closed would change it: %+v", p)
		}
	})
}

// predict compares the dry run with opening a copy.
func (d *damager) predict(policy gantry.DamagePolicy) Prediction {
	t := d.tb
	o := d.options()
	o.Damage = policy
	p, err := Predict(t.Context(), "/s", o)
	if err != nil {
		t.Errorf("dry run: %v", err)
		return p
	}
	real := d.fs.CrashClone(memfs.KeepAll)
	o.FS = real
	s, err := gantry.Open(t.Context(), "/s", &o)
	if err != nil || p.Refused != nil {
		if fmt.Sprint(err) != fmt.Sprint(p.Refused) {
			t.Errorf("opening says %v, the dry run %v", err, p.Refused)
		}
		if err == nil {
			s.Close()
		}
		return p
	}
	var want Prediction
	want.Recovery = s.Recovery()
	for i, name := range want.Recovery.Quarantined {
		want.Recovery.Quarantined[i] = relative("/s", name)
	}
	ends := map[queueName]int64{}
	for _, q := range s.Queues() {
		kind := consumequeue.Simple
		if q.Batch {
			kind = consumequeue.Batch
		}
		ends[queueName{kind, q.Topic, q.QueueID}] = int64(q.MaxOffset)
	}
	d.must(s.Close())
	// All files, not only those that may have been touched.
	all := map[string]bool{}
	for _, fsys := range []*memfs.FS{d.fs, real} {
		files, err := golden.Tree(fsys, "/s")
		d.must(err)
		for _, f := range files {
			all[d.path(f.Path)] = true
		}
	}
	var list []string
	for name := range all {
		list = append(list, name)
	}
	slices.Sort(list)
	c := comparison{before: d.fs, after: real, dir: "/s", p: &want, ends: ends, end: want.Recovery.EndOffset}
	d.must(c.run(t.Context(), list, &o))
	if diff := cmp.Diff(want, p, cmpopts.IgnoreUnexported(QueueChange{}), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("dry run (-opening +predicted):\n%s", diff)
	}
	return p
}

// samples is in how many stores each damage is made without -damage.all.
const samples = 1

// damageOutcome is what came of one damage in one store.
type damageOutcome struct{ found, mended bool }

// sampled says in which of the stores a damage is made without -damage.all: in
// the first two that have what it needs, of an order that differs.
func sampled(names []string, i int) []string {
	small := []string{"5.4.0-lmq", "4.9.8-expired", "5.4.0-propcrc", "5.4.0-cqext", "4.9.8-crash-torn", "5.4.0-multipath", "4.9.8-blankfile", "5.4.0-batchcq",
		"4.9.4-broker-dir", "5.4.0-preblank"}
	k := i * 3 % len(small)
	order := slices.Concat(small[k:], small[:k])
	for _, n := range names {
		if !slices.Contains(order, n) {
			order = append(order, n)
		}
	}
	return order
}
