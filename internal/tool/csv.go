package tool

import (
	"encoding/base64"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/gantrymq/gantry/message"
)

// csvColumns are the columns that AppendCSV writes: the fields of Message. A
// text that a CSV file cannot hold exactly is in its Base64 column instead; if
// that is the topic, the last column holds the whole message as JSON.
var csvColumns = []string{
	"topic", "queueId", "queueOffset", "commitLogOffset", "storeSize", "magic", "sysFlag", "flag", "bodyCRC",
	"bornTimestamp", "bornHost", "storeTimestamp", "storeHost", "reconsumeTimes", "preparedTransactionOffset", "msgId",
	"properties", "propertiesBase64", "body", "bodyBase64", "bodyCompression", "bodyRaw", "json",
}

// CSVHeader is the first line of a CSV file, with its end.
func CSVHeader() string { return strings.Join(csvColumns, ",") + "\n" }

// AppendCSV appends a stored message as a record of a CSV file, with the end of
// the line. Lines inside of quotes do not end it. For raw see AppendJSON.
func AppendCSV(dst []byte, m *message.Ext, raw bool) []byte {
	number := func(v int64) {
		dst = append(strconv.AppendInt(dst, v, 10), ',')
	}
	exact := csvExact([]byte(m.Topic))
	if exact {
		dst = appendCell(dst, m.Topic)
	}
	dst = append(dst, ',')
	number(int64(m.QueueID))
	number(int64(m.QueueOffset))
	number(int64(m.PhysicalOffset))
	number(int64(m.StoreSize))
	dst = append(appendHex32(dst, m.Magic), ',')
	number(int64(m.SysFlag))
	number(int64(m.Flag))
	number(int64(m.BodyCRC))
	number(m.BornTimestamp)
	dst = append(m.BornHost.AppendTo(dst), ',')
	number(m.StoreTimestamp)
	dst = append(m.StoreHost.AppendTo(dst), ',')
	number(int64(m.ReconsumeTimes))
	number(int64(m.PreparedTransactionOffset))
	dst = append(dst, m.MsgID()...)
	dst = append(dst, ',')
	if !exact {
		dst = append(dst, ",,,,,,"...)
		return append(appendCell(dst, string(AppendJSON(nil, m, raw))), '\n')
	}
	dst = appendCell(dst, string(appendProperties(nil, m.Properties)))
	dst = append(dst, ',')
	if !givesBack(m.Properties) {
		dst = base64.StdEncoding.AppendEncode(dst, []byte(m.Properties))
	}
	dst = append(dst, ',')
	b := viewBody(m.Body, m.SysFlag, raw)
	if csvExact(b.body) {
		dst = append(appendCell(dst, string(b.body)), ',')
	} else {
		dst = base64.StdEncoding.AppendEncode(append(dst, ','), b.body)
	}
	dst = append(append(append(dst, ','), b.compression...), ',')
	if b.raw {
		dst = append(dst, "true"...)
	}
	return append(dst, ",\n"...)
}

// csvExact reports whether a cell gives a text back: readers of CSV make one
// line end of two characters.
func csvExact(s []byte) bool {
	for _, c := range s {
		if c == '\r' || c == 0 {
			return false
		}
	}
	return utf8.Valid(s)
}

// appendCell appends a cell, in quotes where they are needed.
func appendCell(dst []byte, s string) []byte {
	if !strings.ContainsAny(s, "\",\n") && strings.TrimSpace(s) == s && s != `\.` {
		return append(dst, s...)
	}
	dst = append(dst, '"')
	for i := strings.IndexByte(s, '"'); i >= 0; i = strings.IndexByte(s, '"') {
		dst = append(append(dst, s[:i+1]...), '"')
		s = s[i+1:]
	}
	return append(append(dst, s...), '"')
}

// CSV reads records of a CSV file whose first one names the columns. One
// goroutine uses it.
type CSV struct {
	lines   *Lines
	columns []string
	buf     []byte
	limit   int
}

// NewCSV reads the names of the columns, which may be in any order and fewer
// than AppendCSV writes; limit bounds a record, in bytes.
func NewCSV(lines *Lines, limit int) (*CSV, error) {
	c := &CSV{lines: lines, limit: limit}
	head, err := c.Next()
	if err == io.EOF {
		return c, nil // an empty file has no message
	}
	if err != nil {
		return nil, err
	}
	if c.columns, err = c.cells(head); err != nil {
		return nil, err
	}
	c.columns[0] = strings.TrimPrefix(c.columns[0], "\ufeff")
	known := make(map[string]bool)
	for _, name := range csvColumns {
		known[name] = true
	}
	for _, name := range c.columns {
		if !known[name] {
			return nil, fmt.Errorf("line 1: no column is named %q", name)
		}
	}
	return c, nil
}

// Next returns the next record as it stands in the file, valid until the next
// call. Errors are those of Lines.Next.
func (c *CSV) Next() ([]byte, error) {
	c.buf = c.buf[:0]
	quotes, tooLong := 0, false
	for {
		line, err := c.lines.next()
		switch {
		case err == io.EOF && quotes > 0:
			err = fmt.Errorf("a quote is not closed: %w", io.ErrUnexpectedEOF)
		case errors.Is(err, ErrLineTooLong):
			tooLong = true // its quotes are not known: it ends here
		}
		if err != nil && !tooLong {
			return nil, err
		}
		for _, b := range line {
			if b == '"' {
				quotes++
			}
		}
		if tooLong = tooLong || len(c.buf)+len(line) > c.limit; !tooLong {
			c.buf = append(c.buf, line...)
		}
		switch {
		case err != nil || quotes%2 == 0 && tooLong:
			return nil, ErrLineTooLong
		case quotes%2 == 0 && len(strings.TrimSpace(string(c.buf))) > 0:
			return c.buf, nil
		case quotes%2 == 0:
			c.buf = c.buf[:0] // a blank line
		}
	}
}

// Number is that of the line on which the record ends, from 1.
func (c *CSV) Number() int { return c.lines.Number() }

func (c *CSV) cells(record []byte) ([]string, error) {
	r := csv.NewReader(strings.NewReader(string(record)))
	r.FieldsPerRecord = -1
	cells, err := r.Read()
	if err != nil {
		var syntax *csv.ParseError
		if errors.As(err, &syntax) {
			err = syntax.Err
		}
		return nil, err
	}
	return cells, nil
}

// Parse converts a record; see FromJSON.
func (c *CSV) Parse(record []byte) (message.Ext, error) {
	if !utf8.Valid(record) {
		return message.Ext{}, errNoUTF8
	}
	cells, err := c.cells(record)
	if err != nil {
		return message.Ext{}, err
	}
	if len(cells) != len(c.columns) {
		return message.Ext{}, fmt.Errorf("%d cells in %d columns", len(cells), len(c.columns))
	}
	var j Message
	body, body64, haveBody := "", "", false
	for i, name := range c.columns {
		if name == "json" && cells[i] != "" {
			return FromJSON([]byte(cells[i]))
		}
		switch name {
		case "body":
			body, haveBody = cells[i], true
		case "bodyBase64":
			body64, haveBody = cells[i], true
		default:
			if err := j.setCell(name, cells[i]); err != nil {
				return message.Ext{}, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	switch {
	case body64 != "" && body != "":
		return message.Ext{}, errors.New("both body and bodyBase64 are given")
	case body64 != "":
		j.BodyBase64 = &body64
	case haveBody:
		j.Body = &body
	}
	return j.message()
}

// setCell sets the field of a column.
func (j *Message) setCell(name, text string) error {
	switch name {
	case "topic":
		j.Topic = text
	case "bornHost":
		j.BornHost = text
	case "storeHost":
		j.StoreHost = text
	case "propertiesBase64":
		j.PropertiesBase64 = text
	case "bodyCompression":
		j.BodyCompression = text
	case "properties":
		if text == "" {
			return nil
		}
		return json.Unmarshal([]byte(text), &j.Properties)
	case "bodyRaw":
		if text == "" {
			return nil
		}
		var err error
		j.BodyRaw, err = strconv.ParseBool(text)
		return err
	}
	if text == "" {
		return nil
	}
	var err error
	int32Of := func(to *int32) {
		var n int64
		if n, err = strconv.ParseInt(text, 10, 32); err == nil {
			*to = int32(n)
		}
	}
	int64Of := func(to *int64) { *to, err = strconv.ParseInt(text, 10, 64) }
	switch name {
	case "queueId":
		int32Of(&j.QueueID)
	case "commitLogOffset":
		int64Of(&j.CommitLogOffset)
	case "sysFlag":
		int32Of(&j.SysFlag)
	case "flag":
		int32Of(&j.Flag)
	case "bornTimestamp":
		int64Of(&j.BornTimestamp)
	case "storeTimestamp":
		int64Of(&j.StoreTimestamp)
	case "reconsumeTimes":
		int32Of(&j.ReconsumeTimes)
	case "preparedTransactionOffset":
		int64Of(&j.PreparedTransactionOffset)
	}
	if err != nil {
		return fmt.Errorf("%q is no number that fits", text)
	}
	return nil
}
