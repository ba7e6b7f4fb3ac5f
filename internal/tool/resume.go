package tool

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
)

// maxExportLine bounds the last line of an export that is read back, in bytes:
// that of the largest message.
const maxExportLine = 512 << 20

// Exported is how far an export went that was interrupted.
type Exported struct {
	Size int64 // bytes up to the end of the last whole record; what follows is to be cut off
	// Next is the position of the log behind the last message, 0 when there is
	// none.
	Next int64
}

// ReadExported looks at a file of size bytes that an export has written: lines
// of JSON, or CSV.
func ReadExported(f io.ReaderAt, size int64, isCSV bool) (Exported, error) {
	if isCSV {
		return readExportedCSV(f, size)
	}
	end, err := lastNewline(f, size)
	if err != nil || end == 0 {
		return Exported{}, err
	}
	start, err := lastNewline(f, end-1)
	if err != nil {
		return Exported{}, err
	}
	if end-start > maxExportLine {
		return Exported{}, fmt.Errorf("the last line has %d bytes", end-start)
	}
	line := make([]byte, end-start)
	if _, err := f.ReadAt(line, start); err != nil && err != io.EOF {
		return Exported{}, err
	}
	var last struct {
		CommitLogOffset *int64 `json:"commitLogOffset"`
		StoreSize       *int64 `json:"storeSize"`
	}
	if err := json.Unmarshal(line, &last); err != nil {
		return Exported{}, fmt.Errorf("the last line is no exported message: %w", err)
	}
	if last.CommitLogOffset == nil || last.StoreSize == nil || *last.CommitLogOffset < 0 || *last.StoreSize <= 0 {
		return Exported{}, errors.New("the last line is no exported message: commitLogOffset or storeSize is missing")
	}
	return Exported{end, *last.CommitLogOffset + *last.StoreSize}, nil
}

// lastNewline returns the offset behind the last end of a line before size, 0
// when there is none.
func lastNewline(f io.ReaderAt, size int64) (int64, error) {
	buf := make([]byte, 64<<10)
	for size > 0 {
		n := min(size, int64(len(buf)))
		p := buf[:n]
		if _, err := f.ReadAt(p, size-n); err != nil && err != io.EOF {
			return 0, err
		}
		if i := bytes.LastIndexByte(p, '\n'); i >= 0 {
			return size - n + int64(i) + 1, nil
		}
		size -= n
	}
	return 0, nil
}

// readExportedCSV reads the whole file, because only from its start can be told
// which ends of lines are inside of quotes.
func readExportedCSV(f io.ReaderAt, size int64) (e Exported, err error) {
	buf := make([]byte, 1<<20)
	start, quotes, records := int64(0), false, 0
	for off := int64(0); off < size; {
		p := buf[:min(size-off, int64(len(buf)))]
		if _, err := f.ReadAt(p, off); err != nil && err != io.EOF {
			return e, err
		}
		for i, b := range p {
			switch {
			case b == '"':
				quotes = !quotes
			case b == '\n' && !quotes:
				start, e.Size = e.Size, off+int64(i)+1
				records++
			}
		}
		off += int64(len(p))
	}
	if records < 2 {
		return e, nil // the names of the columns at most
	}
	head, err := csvRecord(f, 0, 4096)
	if err != nil {
		return e, err
	}
	if !slices.Equal(head, csvColumns) {
		return e, errors.New("the columns are not those of an export")
	}
	if e.Size-start > maxExportLine {
		return e, fmt.Errorf("the last record has %d bytes", e.Size-start)
	}
	cells, err := csvRecord(f, start, e.Size-start)
	if err != nil {
		return e, err
	}
	number := func(name string) int64 {
		n := int64(-1)
		if i := slices.Index(head, name); i >= 0 && i < len(cells) {
			n, err = strconv.ParseInt(cells[i], 10, 64)
		}
		return n
	}
	at, n := number("commitLogOffset"), number("storeSize")
	if err != nil || at < 0 || n <= 0 {
		return e, errors.New("the last record is no exported message: commitLogOffset and storeSize are no numbers")
	}
	e.Next = at + n
	return e, nil
}

func csvRecord(f io.ReaderAt, off, n int64) ([]string, error) {
	r := csv.NewReader(io.NewSectionReader(f, off, n))
	r.FieldsPerRecord = -1
	return r.Read()
}
