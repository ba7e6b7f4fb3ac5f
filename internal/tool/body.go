package tool

import (
	"bytes"
	"compress/zlib"
	"errors"
	"fmt"
	"io"

	"github.com/gantrymq/gantry/message"
)

// maxPlainBody bounds an inflated body, in bytes: sixteen times the default
// limit of a stored one. What is larger is left compressed.
const maxPlainBody = 64 << 20

// plainBody returns the body of a message inflated, or the stored one and true
// when raw asks for it or when it cannot be inflated.
func plainBody(m message.Ext, raw bool) (body []byte, stored bool) {
	if !raw {
		if body, err := inflate(m.Body, m.SysFlag.CompressionType()); err == nil {
			return body, false
		}
	}
	return m.Body, true
}

func inflate(body []byte, c message.Compression) ([]byte, error) {
	if c != message.CompressionZlib {
		return nil, fmt.Errorf("bodies compressed with %v are not inflated", c)
	}
	r, err := zlib.NewReader(bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	plain, err := io.ReadAll(io.LimitReader(r, maxPlainBody+1))
	if err == nil && len(plain) > maxPlainBody {
		err = errors.New("too large")
	}
	return plain, err
}

func deflate(body []byte, c message.Compression) ([]byte, error) {
	if c != message.CompressionZlib {
		return nil, fmt.Errorf("a body cannot be compressed with %v; export it with --raw", c)
	}
	var b bytes.Buffer
	w := zlib.NewWriter(&b)
	_, err := w.Write(body)
	err = errors.Join(err, w.Close())
	return b.Bytes(), err
}
