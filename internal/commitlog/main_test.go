package commitlog

import (
	"testing"

	"go.uber.org/goleak"
)

// No test may leave a goroutine behind: every one has an owner that waits for
// it in Close.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
