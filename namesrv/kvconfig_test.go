package namesrv

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
)

const kvDir, kvPath = "/namesrv", "/namesrv/kvConfig.json"

func openKV(t testing.TB, fsys vfs.FS) *kvConfig {
	t.Helper()
	kv, err := openKVConfig(fsys, kvDir, kvPath, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return kv
}

func writeFile(t testing.TB, fsys vfs.FS, name, text string) {
	t.Helper()
	if err := fsys.MkdirAll(kvDir); err != nil {
		t.Fatal(err)
	}
	if err := vfs.WriteFileAtomic(fsys, name, []byte(text)); err != nil {
		t.Fatal(err)
	}
}

func readFile(t testing.TB, fsys vfs.FS, name string) string {
	t.Helper()
	data, err := vfs.ReadFile(fsys, name, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func put(t testing.TB, kv *kvConfig, namespace, key, value string) {
	t.Helper()
	if err := kv.put(namespace, key, value); err != nil {
		t.Fatal(err)
	}
}

func TestKVConfig(t *testing.T) {
	fsys := memfs.New()
	kv := openKV(t, fsys)
	put(t, kv, "NS", "k<1>", "v&")
	put(t, kv, "NS", "k2", "")
	put(t, kv, "NS2", "k", "v")
	put(t, kv, "NS2", "k", "w")
	if err := errors.Join(kv.remove("NS2", "k"), kv.remove("NS2", "k"), kv.remove("NS3", "k")); err != nil {
		t.Fatal(err)
	}
	const file = `{"configTable":{"NS":{"k2":"","k<1>":"v&"},"NS2":{}}}`
	if got := readFile(t, fsys, kvPath); got != file {
		t.Errorf("file %s, want %s", got, file)
	}
	for name, kv := range map[string]*kvConfig{"before": kv, "after opening again": openKV(t, fsys)} {
		t.Run(name, func(t *testing.T) {
			if v, ok := kv.get("NS", "k<1>"); v != "v&" || !ok {
				t.Errorf("got %q %v", v, ok)
			}
			if v, ok := kv.get("NS", "nosuch"); v != "" || ok {
				t.Errorf("got %q %v", v, ok)
			}
			want := kvTable{"NS": {"k<1>": "v&", "k2": ""}, "NS2": {}}
			if diff := cmp.Diff(want, *kv.table.Load()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if _, ok := kv.namespace("NS2"); !ok {
				t.Error("the namespace whose keys were deleted is gone")
			}
			if _, ok := kv.namespace("NS3"); ok {
				t.Error("a namespace that never was")
			}
			if got := kv.count(); got != 2 {
				t.Errorf("%d keys", got)
			}
			if got, want := kv.mu.cost, (*kv.table.Load()).cost(); got != want {
				t.Errorf("cost counted as %d, it is %d", got, want)
			}
		})
	}
}

func TestKVConfigFiles(t *testing.T) {
	const good, older = `{"configTable":{"NS":{"k":"new"}}}`, `{"configTable":{"NS":{"k":"old"}}}`
	for _, tc := range []struct {
		name, main, backup string
		want               string // value of NS/k
		err                string
	}{
		{"neither", "", "", "", ""},
		{"main", good, "", "new", ""},
		{"both", good, older, "new", ""},
		{"backup only", "", older, "old", ""},
		{"main damaged", good[:20], older, "old", ""},
		{"main of another kind", `{"configTable":[1]}`, older, "old", ""},
		{"main damaged, no backup", good[:20], "", "", "kvConfig.json"},
		{"both damaged", "{", "}", "", "kvConfig.json"},
		{"no table", `{}`, "", "", ""},
		{"null namespace", `{"configTable":{"NS":null}}`, "", "", ""},
		{"written by Java, unquoted keys", `{"configTable":{"NS":{1:"x","k":"java"}}}`, "", "java", ""},
		{"too much", `{"configTable":{"NS":{"k":"` + strings.Repeat("x", maxKVCost) + `"}}}`, "", "", "the limit is"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			fsys := memfs.New()
			if tc.main != "" {
				writeFile(t, fsys, kvPath, tc.main)
			}
			if tc.backup != "" {
				writeFile(t, fsys, kvPath+".bak", tc.backup)
			}
			kv, err := openKVConfig(fsys, kvDir, kvPath, slog.New(slog.DiscardHandler))
			if !matches(err, tc.err) {
				t.Fatalf("error %v, want %q", err, tc.err)
			}
			if err != nil {
				return
			}
			if got, _ := kv.get("NS", "k"); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			put(t, kv, "NS", "k", "newest")
			if got, _ := openKV(t, fsys).get("NS", "k"); got != "newest" {
				t.Errorf("after a change and opening again: %q", got)
			}
		})
	}
}

// TestKVConfigKeepsGoodBackup: the save after a damaged file was found must not
// put the damaged one in the place of the backup, which is all there is until
// the new file has its name.
func TestKVConfigKeepsGoodBackup(t *testing.T) {
	fsys := memfs.New()
	writeFile(t, fsys, kvPath, "{")
	writeFile(t, fsys, kvPath+".bak", `{"configTable":{"NS":{"k":"old"}}}`)
	put(t, openKV(t, fsys), "NS", "k", "new")
	if got := readFile(t, fsys, kvPath+damagedSuffix); got != "{" {
		t.Errorf("set aside: %q", got)
	}
	if err := fsys.Remove(kvPath); err != nil { // as a crash between the renames
		t.Fatal(err)
	}
	if got, _ := openKV(t, fsys).get("NS", "k"); got != "old" {
		t.Errorf("the backup has %q", got)
	}
}

func TestKVConfigRefuses(t *testing.T) {
	kv := openKV(t, memfs.New())
	for _, tc := range []struct{ name, namespace, key, value, err string }{
		{"no namespace", "", "k", "v", "namespace is empty"},
		{"no key", "NS", "", "v", "key is empty"},
		{"line feed in the key", "NS", "a\nb", "v", "control characters"},
		{"long key", "NS", strings.Repeat("k", maxKVName+1), "v", "the limit is"},
		{"too much", "NS", "k", strings.Repeat("v", maxKVCost), "the limit is"},
		{"line feed in the value", "NS", "k", "a\nb", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := kv.put(tc.namespace, tc.key, tc.value); !matches(err, tc.err) {
				t.Errorf("error %v, want %q", err, tc.err)
			}
		})
	}
	if got := kv.count(); got != 1 {
		t.Errorf("%d keys", got)
	}
}

// TestKVConfigCostIsBounded: neither keys nor empty namespaces pile up.
func TestKVConfigCostIsBounded(t *testing.T) {
	kv, err := openKVConfig(nil, "", "", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	name := strings.Repeat("n", maxKVName-8)
	n := 0
	for ; n < maxKVCost/maxKVName*2; n++ {
		ns := name + string(rune('a'+n%26)) + string(rune('a'+n/26%26)) + string(rune('a'+n/676))
		if kv.put(ns, "k", "v") != nil {
			break
		}
		if err := kv.remove(ns, "k"); err != nil {
			t.Fatal(err)
		}
	}
	if want := maxKVCost / maxKVName; n > want {
		t.Errorf("%d namespaces, at most %d fit", n, want)
	}
	if got, want := kv.mu.cost, (*kv.table.Load()).cost(); got != want || got > maxKVCost {
		t.Errorf("cost counted as %d, it is %d, the limit %d", got, want, maxKVCost)
	}
}

// TestKVConfigSaveFails: a change that was not saved is not shown, and the next
// one that succeeds has all of it.
func TestKVConfigSaveFails(t *testing.T) {
	for _, op := range []faultfs.Op{faultfs.OpCreate, faultfs.OpWrite, faultfs.OpSync, faultfs.OpRename, faultfs.OpSyncDir} {
		t.Run(op.String(), func(t *testing.T) {
			mem := memfs.New()
			fsys := faultfs.New(mem)
			kv := openKV(t, fsys)
			put(t, kv, "NS", "k", "old")
			fault := errors.New("injected")
			rule := fsys.Fail(op, "*", fault)
			if err := kv.put("NS", "k", "new"); !errors.Is(err, fault) {
				t.Fatalf("error %v", err)
			}
			if v, _ := kv.get("NS", "k"); v != "old" {
				t.Errorf("shown: %q", v)
			}
			rule.Remove()
			put(t, kv, "NS", "k", "old") // the file may have the new value
			if v, _ := openKV(t, mem).get("NS", "k"); v != "old" {
				t.Errorf("after opening again: %q", v)
			}
		})
	}
}

// TestKVConfigCrash: whenever a crash comes, what was acknowledged is there.
func TestKVConfigCrash(t *testing.T) {
	for k := 0; ; k++ {
		mem := memfs.NewCrashable(int64(k))
		if err := mem.MkdirAll(kvDir); err != nil {
			t.Fatal(err)
		}
		fsys := faultfs.CrashAt(mem, k)
		acked, tried := "", ""
		if kv, err := openKVConfig(fsys, kvDir, kvPath, slog.New(slog.DiscardHandler)); err == nil {
			for _, v := range []string{"1", "2", "3"} {
				tried = v
				if kv.put("NS", "k", v) != nil {
					break
				}
				acked = v
			}
		}
		for _, policy := range memfs.Policies() {
			kv := openKV(t, mem.CrashClone(policy))
			if got, _ := kv.get("NS", "k"); got != acked && got != tried {
				t.Errorf("crash at change %d, %v: %q, acknowledged %q, tried %q", k, policy, got, acked, tried)
			}
		}
		if !fsys.Crashed() {
			break
		}
	}
}
