package remoting

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// rawFrame builds a frame from any header bytes.
func rawFrame(typ HeaderType, header string, body []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(wordLen+len(header)+len(body)))
	b = binary.BigEndian.AppendUint32(b, uint32(typ)<<24|uint32(len(header)))
	return append(append(b, header...), body...)
}

// diffCommands compares what of commands goes over the wire.
func diffCommands(want, got *Command) string {
	if want.Code == got.Code && want.Language == got.Language && want.Version == got.Version && want.Opaque == got.Opaque &&
		want.Flag == got.Flag && want.Remark == got.Remark && want.Header == got.Header &&
		slices.Equal(want.Ext, got.Ext) && bytes.Equal(want.Body, got.Body) {
		return ""
	}
	return cmp.Diff(want, got, cmpopts.IgnoreUnexported(Command{}), cmpopts.EquateEmpty())
}

func diffFields(want, got Fields) string {
	if slices.Equal(want, got) {
		return ""
	}
	return cmp.Diff(want, got, cmpopts.EquateEmpty())
}
