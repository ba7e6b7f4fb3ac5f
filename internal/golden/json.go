package golden

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"github.com/gantrymq/gantry/message"
)

// Hash is a SHA-256, in JSON as 64 hexadecimal digits.
type Hash [32]byte

// UnmarshalText decodes hexadecimal digits.
func (h *Hash) UnmarshalText(b []byte) error {
	if len(b) != 2*len(h) {
		return fmt.Errorf("hash %q has not %d digits", b, 2*len(h))
	}
	_, err := hex.Decode(h[:], b)
	return err
}

// MarshalText gives hexadecimal digits.
func (h Hash) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, h[:]), nil }

// String gives hexadecimal digits.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// Hex is bytes, in JSON as hexadecimal digits; null is nil.
type Hex []byte

// UnmarshalText decodes hexadecimal digits.
func (h *Hex) UnmarshalText(b []byte) error {
	out := make([]byte, hex.DecodedLen(len(b)))
	if _, err := hex.Decode(out, b); err != nil {
		return err
	}
	*h = out
	return nil
}

// MarshalText gives hexadecimal digits.
func (h Hex) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, h), nil }

// Magic is a record's magic code, in JSON as eight hexadecimal digits.
type Magic uint32

// UnmarshalText decodes hexadecimal digits.
func (m *Magic) UnmarshalText(b []byte) error {
	v, err := strconv.ParseUint(string(b), 16, 32)
	*m = Magic(v)
	return err
}

// MarshalText gives eight hexadecimal digits.
func (m Magic) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%08x", uint32(m)), nil }

// NoOffset stands in Offsets for a record that Java returned but could not
// decode.
const NoOffset message.PhysicalOffset = -1 << 63

// Offsets are physical offsets of records, NoOffset for null.
type Offsets []message.PhysicalOffset

// UnmarshalJSON maps null to NoOffset.
func (o *Offsets) UnmarshalJSON(b []byte) error {
	var v []*message.PhysicalOffset
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	if v == nil {
		*o = nil
		return nil
	}
	*o = make(Offsets, len(v))
	for i, p := range v {
		(*o)[i] = NoOffset
		if p != nil {
			(*o)[i] = *p
		}
	}
	return nil
}

// strict decodes one JSON value; unknown fields and anything behind the value
// are errors.
func strict(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("data behind the JSON value")
	}
	return nil
}

// DecodeObservation decodes the output of Java's interop program strictly
// into v, a pointer to a structure that embeds Observation.
func DecodeObservation(b []byte, v any) error { return strict(b, v) }
