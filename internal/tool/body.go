package tool

import (
	"bytes"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"

	"github.com/gantrymq/gantry/message"
)

// MaxPlainBody bounds an opened body, in bytes: sixteen times the default limit
// of a stored one. What is larger is left compressed.
const MaxPlainBody = 64 << 20

// plainBody returns the body of a message opened, or the stored one and true
// when raw asks for it or when it cannot be opened.
func plainBody(body []byte, f message.SysFlag, raw bool) (plain []byte, stored bool) {
	if !raw {
		if plain, err := Inflate(body, f.CompressionType(), MaxPlainBody); err == nil {
			return plain, false
		}
	}
	return body, true
}

// Inflate opens a body that is compressed with c, of at most limit bytes.
func Inflate(body []byte, c message.Compression, limit int64) ([]byte, error) {
	var r io.Reader
	switch c {
	case message.CompressionNone:
		return body, nil
	case message.CompressionZlib:
		z, err := zlib.NewReader(bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		r = z
	case message.CompressionLZ4:
		r = lz4.NewReader(bytes.NewReader(body))
	case message.CompressionZstd:
		d, err := zstdReader()
		if err != nil {
			return nil, err
		}
		defer zstdReaders.Put(d)
		if err := d.Reset(bytes.NewReader(body)); err != nil {
			return nil, err
		}
		r = d
	default:
		return nil, fmt.Errorf("bodies compressed with %v cannot be opened", c)
	}
	plain, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(plain)) > limit {
		err = fmt.Errorf("the body has more than %d bytes", limit)
	}
	return plain, err
}

// zstdReaders keeps readers, which are expensive to make. They work without
// goroutines of their own, so one that the pool drops leaves nothing behind.
var zstdReaders sync.Pool

func zstdReader() (*zstd.Decoder, error) {
	if d, ok := zstdReaders.Get().(*zstd.Decoder); ok {
		return d, nil
	}
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(MaxPlainBody), zstd.WithDecoderMaxWindow(32<<20))
}

// deflate compresses a body that was opened.
func deflate(body []byte, c message.Compression) ([]byte, error) {
	var b bytes.Buffer
	var w io.WriteCloser
	switch c {
	case message.CompressionZlib:
		w = zlib.NewWriter(&b)
	case message.CompressionLZ4:
		w = lz4.NewWriter(&b)
	case message.CompressionZstd:
		z, err := zstd.NewWriter(&b, zstd.WithEncoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		w = z
	default:
		return nil, fmt.Errorf("a body cannot be compressed with %v; export it with --raw", c)
	}
	_, err := w.Write(body)
	err = errors.Join(err, w.Close())
	return b.Bytes(), err
}
