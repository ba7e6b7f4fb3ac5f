package broker

import (
	"context"
	"errors"
	"strings"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// putCodes is what a producer is told for each outcome of a put (upstream:
// SendMessageProcessor.handlePutMessageResult).
var putCodes = map[gantry.PutStatus]struct {
	code   int32
	stored bool // the message is in the log: the answer says where
	remark string
}{
	gantry.PutOK:                  {remoting.CodeSuccess, true, ""},
	gantry.FlushDiskTimeout:       {remoting.CodeFlushDiskTimeout, true, ""},
	gantry.ServiceNotAvailable:    {remoting.CodeServiceNotAvailable, false, "service not available now"},
	gantry.MessageIllegal:         {remoting.CodeMessageIllegal, false, "the message is illegal, maybe msg body or properties length not matched"},
	gantry.PropertiesSizeExceeded: {remoting.CodeMessageIllegal, false, "the message is illegal, maybe msg properties length limit 32k"},
	gantry.OSPageCacheBusy:        {remoting.CodeSystemBusy, false, "[PC_SYNCHRONIZED]broker busy, start flow control for a while"},
	gantry.CreateMappedFileFailed: {remoting.CodeSystemError, false, "create mapped file failed, server is busy or broken"},
	gantry.UnknownError:           {remoting.CodeSystemError, false, "UNKNOWN_ERROR"},
}

// putResponse returns the code for the error of a put, and the remark: words of
// upstream for those who search for them, then what happened here. stored says
// that the message is in the log all the same.
func putResponse(err error) (code int32, remark string, stored bool) {
	status := gantry.PutStatusOf(err)
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		// Who waited for the disk went away; the message is in the log.
		status = gantry.FlushDiskTimeout
	}
	if r, ok := errors.AsType[*message.RejectError](err); ok && strings.HasPrefix(r.Field, "TIMER_") {
		// Not the message's fault: as a broker without timerWheelEnable.
		return remoting.CodeSystemError, "accurate timer message is not enabled, timerWheelEnable is false: " + err.Error(), false
	}
	to := putCodes[status]
	remark = to.remark
	switch {
	case err == nil || remark == "":
	default:
		remark += ": " + err.Error()
	}
	return to.code, remark, to.stored
}

// storeError makes the error of a read the answer for it.
func storeError(err error) error {
	if errors.Is(err, gantry.ErrClosed) {
		return remoting.Errorf(remoting.CodeServiceNotAvailable, "%v", err)
	}
	return remoting.Errorf(remoting.CodeSystemError, "%v", err)
}
