package checktest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gantrymq/gantry/internal/check"
	"github.com/gantrymq/gantry/internal/golden"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
)

// recorder notes failures instead of failing.
type recorder struct {
	testing.TB
	failures []string
}

func (r *recorder) Helper() {}
func (r *recorder) Errorf(format string, args ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func TestDir(t *testing.T) {
	tests := []struct {
		name, store string
		opts        []Option
		failures    int
		text        string
	}{
		{"sound store", "5.4.0-blankfile", nil, 0, ""},
		{"store with two warnings", "4.9.8-expired", nil, 2, "warning queue.expired consumequeue/TopicA/0"},
		{"allowed", "4.9.8-expired", []Option{Allow("queue.expired")}, 0, ""},
		{"another rule allowed", "4.9.8-expired", []Option{Allow("queue.order")}, 2, ""},
		{"wrong option", "5.4.0-blankfile", []Option{Configure(func(o *check.Options) { o.Level = 9 })}, 1, "unknown level 9"},
		{"wrong folder of the log", "5.4.0-blankfile", []Option{Configure(func(o *check.Options) { o.CommitLogDirs = []string{"elsewhere"} })}, 1, "error store.empty"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			fs := memfs.New()
			if err := golden.UnpackTo(fs, "/s", tt.store); err != nil {
				t.Fatal(err)
			}
			r := &recorder{TB: t}
			sum := Dir(r, fs, "/s", tt.opts...)
			if len(r.failures) != tt.failures || !strings.Contains(strings.Join(r.failures, "\n"), tt.text) {
				t.Errorf("failures %q, want %d with %q", r.failures, tt.failures, tt.text)
			}
			if tt.name == "sound store" && (sum.Messages != 16 || !sum.Clean) {
				t.Errorf("summary %+v", sum)
			}
		})
	}
}
