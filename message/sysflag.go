package message

import "strconv"

// Queued reports whether a record with this flag gets a unit in its consume
// queue and takes up a queue offset: all but PREPARED and ROLLBACK do.
func (f SysFlag) Queued() bool {
	t := f.Transaction()
	return t == 0 || t == TxCommit
}

// Indexed reports whether the keys of a record with this flag are indexed: of
// all but ROLLBACK they are.
func (f SysFlag) Indexed() bool { return f.Transaction() != TxRollback }

// Compression names how a body is compressed (RocketMQ: CompressionType).
type Compression uint8

// The compressions that a SysFlag can name.
const (
	CompressionNone Compression = iota
	CompressionZlib             // also what records before 4.9.4 mean by Compressed alone
	CompressionLZ4
	CompressionZstd
	CompressionUnknown // a type that no release defines
)

// String returns the name in lower case.
func (c Compression) String() string {
	switch c {
	case CompressionNone:
		return "none"
	case CompressionZlib:
		return "zlib"
	case CompressionLZ4:
		return "lz4"
	case CompressionZstd:
		return "zstd"
	case CompressionUnknown:
		return "unknown"
	}
	return "compression(" + strconv.Itoa(int(c)) + ")"
}

// CompressionType returns how the body is compressed, CompressionNone if the
// Compressed bit is clear. The body itself is left alone by this package.
func (f SysFlag) CompressionType() Compression {
	if f&Compressed == 0 {
		return CompressionNone
	}
	switch f & compressMask {
	case 0, 0x300:
		return CompressionZlib
	case 0x100:
		return CompressionLZ4
	case 0x200:
		return CompressionZstd
	}
	return CompressionUnknown
}

// WithCompression returns f with the bits that say c; CompressionUnknown is not
// to be passed.
func (f SysFlag) WithCompression(c Compression) SysFlag {
	f &^= Compressed | compressMask
	switch c {
	case CompressionZlib:
		f |= Compressed | 0x300
	case CompressionLZ4:
		f |= Compressed | 0x100
	case CompressionZstd:
		f |= Compressed | 0x200
	}
	return f
}
