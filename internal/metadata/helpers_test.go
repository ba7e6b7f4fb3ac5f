package metadata

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/gantrymq/gantry/internal/golden"
	"github.com/gantrymq/gantry/internal/javajson"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
)

const configDir = "/store/config"

// state is all of a broker's state in one directory.
type state struct {
	topics  *Topics
	groups  *Groups
	offsets *Offsets
	filters *Filters
}

func openAll(fsys vfs.FS, d Defaults, logger *slog.Logger) (s state, err error) {
	if s.topics, err = OpenTopics(fsys, configDir, d, logger); err != nil {
		return s, err
	}
	if s.groups, err = OpenGroups(fsys, configDir, logger); err != nil {
		return s, err
	}
	if s.offsets, err = OpenOffsets(fsys, configDir, logger); err != nil {
		return s, err
	}
	s.filters, err = OpenFilters(fsys, configDir, logger)
	return s, err
}

func (s state) save(t testing.TB) {
	t.Helper()
	for _, err := range []error{s.topics.Save(), s.groups.Save(), s.offsets.Save(), s.filters.Save()} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// likeGenuine are the defaults of the brokers that made the golden stores.
func likeGenuine(cluster string) Defaults {
	return Defaults{ClusterName: cluster, BrokerName: "broker-a", AutoCreateTopic: true, ClusterTopic: true, BrokerTopic: true}
}

func mustOpen(t testing.TB, fsys vfs.FS) state {
	t.Helper()
	s, err := openAll(fsys, likeGenuine("DefaultCluster"), nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// goldenFiles are the configuration files of the golden stores by name;
// unpacking a whole store each time would be slow.
var goldenFiles sync.Map

// goldenConfig is a file system with the configuration of a golden store.
func goldenConfig(t testing.TB, store string) *memfs.FS {
	t.Helper()
	files, ok := goldenFiles.Load(store)
	if !ok {
		whole := memfs.New()
		if err := golden.UnpackTo(whole, filepath.Dir(configDir), store); err != nil {
			t.Fatal(err)
		}
		entries, err := whole.List(configDir)
		if err != nil {
			t.Fatal(err)
		}
		m := make(map[string]string)
		for _, e := range entries {
			m[e.Name] = readFile(t, whole, e.Name)
		}
		goldenFiles.Store(store, m)
		files = m
	}
	fsys := memfs.New()
	for name, text := range files.(map[string]string) {
		writeFile(t, fsys, name, text)
	}
	return fsys
}

func writeFile(t testing.TB, fsys vfs.FS, name, text string) {
	t.Helper()
	if err := fsys.MkdirAll(configDir); err != nil {
		t.Fatal(err)
	}
	if err := vfs.WriteFileAtomic(fsys, filepath.Join(configDir, name), []byte(text)); err != nil {
		t.Fatal(err)
	}
}

func readFile(t testing.TB, fsys vfs.FS, name string) string {
	t.Helper()
	data, err := vfs.ReadFile(fsys, filepath.Join(configDir, name), javajson.MaxSize)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func exists(fsys vfs.FS, name string) bool {
	_, err := fsys.Stat(filepath.Join(configDir, name))
	return err == nil
}

// decode is a reading of JSON that has nothing to do with the package's own.
func decode(t testing.TB, text string) map[string]any {
	t.Helper()
	var v map[string]any
	if err := javajson.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in %.300q", err, text)
	}
	return v
}

// at walks down objects.
func at(t testing.TB, v any, path ...string) any {
	t.Helper()
	for _, name := range path {
		m, ok := v.(map[string]any)
		if !ok || m[name] == nil {
			t.Fatalf("nothing under %q in %v", name, path)
		}
		v = m[name]
	}
	return v
}

// lost lists what is in want and not, or not so, in got, apart from the paths
// in except. What got has besides is no matter.
func lost(want, got any, path string, except ...string) []string {
	for _, e := range except {
		if e == path {
			return nil
		}
	}
	wm, ok := want.(map[string]any)
	gm, ok2 := got.(map[string]any)
	if ok && ok2 {
		var list []string
		for _, name := range sortedKeys(wm) {
			g, ok := gm[name]
			p := strings.TrimPrefix(path+"/"+name, "/")
			if !ok {
				if !isIn(p, except) {
					list = append(list, p+" is missing")
				}
				continue
			}
			list = append(list, lost(wm[name], g, p, except...)...)
		}
		return list
	}
	w, _ := json.Marshal(want)
	g, _ := json.Marshal(got)
	if !bytes.Equal(w, g) {
		return []string{fmt.Sprintf("%s: %s became %s", path, w, g)}
	}
	return nil
}

func isIn(s string, list []string) bool {
	for _, e := range list {
		if e == s {
			return true
		}
	}
	return false
}

// logs collects what is logged, at warning or above.
type logs struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *logs) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelWarn}))
}
