// Package javajson reads the JSON dialect of RocketMQ's configuration files
// (fastjson 1.x; section 14.1 of the format): map keys that are not strings
// are written without quotes, {0:12,1:7}. It also finds the file to read: the
// main one or, when that is missing, empty or damaged, its .bak.
package javajson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs"
)

// MaxSize is the largest file that Load reads, in bytes. The largest genuine
// ones, offsets of 100 000 queues, are some 10 MB.
const MaxSize = 256 << 20

// maxDepth bounds nesting; encoding/json itself allows 10 000 levels.
const maxDepth = 64

// Unmarshal decodes data, in the dialect or in plain JSON, into v. Numbers
// meant for interface values become json.Number.
func Unmarshal(data []byte, v any) error {
	std, err := Normalize(data)
	if err != nil {
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(std))
	dec.UseNumber()
	if err := dec.Decode(v); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("data after the JSON value")
	}
	return nil
}

// Normalize returns data with bare integer keys put in quotes; everything else
// is left as it is for encoding/json to judge. The result aliases data when
// there was nothing to change.
func Normalize(data []byte) ([]byte, error) {
	var out []byte
	last, depth := 0, 0
	keyMayFollow := false // after '{' or ',': a key, unless inside an array
	inObject := make([]bool, 0, maxDepth)
	for i := 0; i < len(data); {
		switch c := data[i]; {
		case c == '"':
			end := stringEnd(data, i)
			if end < 0 {
				return nil, fmt.Errorf("string at offset %d does not end", i)
			}
			i, keyMayFollow = end, false
		case c == '{' || c == '[':
			depth++
			if depth > maxDepth {
				return nil, fmt.Errorf("more than %d levels at offset %d", maxDepth, i)
			}
			inObject = append(inObject, c == '{')
			keyMayFollow = c == '{'
			i++
		case c == '}' || c == ']':
			if depth == 0 {
				return nil, fmt.Errorf("unexpected %q at offset %d", c, i)
			}
			depth--
			inObject = inObject[:depth]
			keyMayFollow = false
			i++
		case c == ',':
			keyMayFollow = depth > 0 && inObject[depth-1]
			i++
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			i++
		case keyMayFollow && (c == '-' || c >= '0' && c <= '9'):
			end := i + 1
			for end < len(data) && data[end] >= '0' && data[end] <= '9' {
				end++
			}
			out = append(out, data[last:i]...)
			out = append(out, '"')
			out = append(out, data[i:end]...)
			out = append(out, '"')
			last, i, keyMayFollow = end, end, false
		default:
			i++
			keyMayFollow = false
		}
	}
	if out == nil {
		return data, nil
	}
	return append(out, data[last:]...), nil
}

// stringEnd returns the offset behind the string literal that starts at i, or
// -1 when it does not end.
func stringEnd(data []byte, i int) int {
	for i++; i < len(data); i++ {
		switch data[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return -1
}

// Load reads name, or name+".bak" when name is missing, empty or damaged, into
// v. It returns which of the two was used; "" and nil when neither exists. In
// the fallback case cause says what was wrong with the main file (nil when it
// is merely missing). When there is something but nothing usable, the error
// names the main file. fresh makes the value to decode into, so that a half
// decoded main file leaves no trace; use takes it when it was decoded whole.
func Load[T any](fsys vfs.FS, name string, use func(T)) (used string, cause, err error) {
	for _, n := range []string{name, name + ".bak"} {
		data, rerr := vfs.ReadFile(fsys, n, MaxSize)
		switch {
		case errors.Is(rerr, fs.ErrNotExist):
			continue
		case rerr != nil:
			cause = errors.Join(cause, rerr)
			continue
		case len(bytes.TrimSpace(data)) == 0:
			cause = errors.Join(cause, fmt.Errorf("%s: empty", n))
			continue
		}
		var v T
		if uerr := Unmarshal(data, &v); uerr != nil {
			cause = errors.Join(cause, base.Corruptf(n, 0, "not the expected JSON: %v", uerr))
			continue
		}
		use(v)
		return n, cause, nil
	}
	return "", nil, cause
}

// Save replaces name by data so that every crash leaves the old or the new
// content: the new one is written to name+".tmp" and synced, the current file
// becomes name+".bak", the new one takes its place, and the directory is
// synced. Between the two renames only the .bak exists, which Load accepts, as
// Java does.
func Save(fsys vfs.FS, name string, data []byte) error {
	tmp := name + ".tmp"
	if err := fsys.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := fsys.Create(tmp)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(data, 0)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", tmp, err)
	}
	if err := fsys.Rename(name, name+".bak"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := fsys.Rename(tmp, name); err != nil {
		return err
	}
	return fsys.SyncDir(filepath.Dir(name))
}
