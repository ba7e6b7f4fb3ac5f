package remoting

import (
	"errors"
	"fmt"
	"iter"
)

// HeaderType is how a header is encoded (upstream: SerializeType).
type HeaderType uint8

const (
	HeaderJSON   HeaderType = 0
	HeaderBinary HeaderType = 1 // upstream calls it ROCKETMQ
)

func (t HeaderType) String() string {
	switch t {
	case HeaderJSON:
		return "JSON"
	case HeaderBinary:
		return "ROCKETMQ"
	}
	return fmt.Sprintf("HeaderType(%d)", uint8(t))
}

// Bits of Command.Flag.
const (
	FlagResponse int32 = 1 << 0 // the command is an answer
	FlagOneway   int32 = 1 << 1 // a request that must not be answered
)

// Versions of peers on which behaviour depends: ordinals of upstream's
// MQVersion.
const (
	Version3_0_11 int32 = 37  // from it on, the body of REGISTER_BROKER is a RegisterBrokerBody
	Version3_1_8  int32 = 62  // from it on, a client answers 307 and 309
	Version3_4_9  int32 = 121 // from it on, a consumer's maxReconsumeTimes counts
	Version4_9_3  int32 = 399 // up to it, _UNIQUE_KEY_QUERY is not signed
	Version4_9_4  int32 = 401 // from it on, route data is strict JSON upstream
	Version5_0_0  int32 = 413 // from it on, a compressed registration carries queue mappings

	// CurrentVersion is the version that our commands carry (V5_3_3). It is
	// high enough for every feature that peers look for.
	CurrentVersion int32 = 479
)

// A Command is a request or an answer (upstream: RemotingCommand).
//
// The strings of a command that was read share memory with each other, not
// with the body or the connection's buffers: keeping one string keeps some
// hundred bytes. A command belongs to one goroutine at a time.
type Command struct {
	Code     int32 // a request code, or a response code when Flag says so
	Language Language
	Version  int32
	Opaque   int32
	Flag     int32
	Remark   string // "" is none
	Ext      Fields // nil is none; empty but not nil is written as {}
	Body     []byte

	// Header is the encoding that the command came in, or goes out in. An
	// answer always goes out in that of its request.
	Header HeaderType

	in    *inbound // set on a request that came from a connection
	typed Header   // the ext fields in place of Ext: see SetTyped
}

// NewRequest returns a request of ours. h may be nil.
func NewRequest(code int32, h Header) *Command {
	c := &Command{Code: code, Language: LanguageGo, Version: CurrentVersion}
	c.SetHeader(h)
	return c
}

// NewResponse returns an answer of ours; Conn.Reply fills in the rest.
func NewResponse(code int32, remark string) *Command {
	return &Command{Code: code, Language: LanguageGo, Version: CurrentVersion, Flag: FlagResponse, Remark: remark}
}

// IsResponse reports whether the command is an answer.
func (c *Command) IsResponse() bool { return c.Flag&FlagResponse != 0 }

// IsOneway reports whether the sender wants no answer.
func (c *Command) IsOneway() bool { return c.Flag&FlagOneway != 0 }

// sign puts our language and version on a command that names none.
func (c *Command) sign() {
	if c.Version == 0 {
		c.Language, c.Version = LanguageGo, CurrentVersion
	}
}

// SetHeader replaces Ext by the fields of h; nil removes them.
func (c *Command) SetHeader(h Header) {
	c.Ext, c.typed = nil, nil
	if h != nil {
		c.Ext = EncodeHeader(h)
	}
}

// SetTyped is SetHeader without Ext in between: Ext is nil, and the fields of h
// are written when the command is. h must not be changed any more, and Ext is
// ignored. It is for the answers that a server gives most often.
func (c *Command) SetTyped(h Header) { c.Ext, c.typed = nil, h }

// Err returns nil for an answer with code 0 and an *Error for any other.
func (c *Command) Err() error {
	if c.Code == CodeSuccess {
		return nil
	}
	return &Error{Code: c.Code, Remark: c.Remark}
}

func (c *Command) String() string {
	if c.IsResponse() {
		return fmt.Sprintf("response %s (%d) opaque %d remark %q", ResponseName(c.Code), c.Code, c.Opaque, c.Remark)
	}
	return fmt.Sprintf("request %s (%d) opaque %d", RequestName(c.Code), c.Code, c.Opaque)
}

// Error is an answer other than success. A handler returns one to choose code
// and remark; Command.Err returns what came from a peer.
type Error struct {
	Code   int32
	Remark string
}

// Errorf returns an *Error with a formatted remark.
func Errorf(code int32, format string, args ...any) *Error {
	return &Error{Code: code, Remark: fmt.Sprintf(format, args...)}
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s (%d): %s", ResponseName(e.Code), e.Code, e.Remark)
}

// Response returns the answer that err asks for: that of the *Error in it, or
// SYSTEM_ERROR with its text.
func Response(err error) *Command {
	var e *Error
	if errors.As(err, &e) {
		return NewResponse(e.Code, e.Remark)
	}
	return NewResponse(CodeSystemError, err.Error())
}

// Field is one ext field.
type Field struct{ Name, Value string }

// Fields are the ext fields of a command in the order of the wire. Names are
// unique in what was decoded: the last of several wins, as in Java's maps.
// A slice beats a map here: commands have up to about 15 fields, which are
// read once each (BenchmarkFields).
type Fields []Field

// Get returns the value of name and whether it is there.
func (f Fields) Get(name string) (string, bool) {
	for i := range f {
		if f[i].Name == name {
			return f[i].Value, true
		}
	}
	return "", false
}

// Value returns the value of name, or "".
func (f Fields) Value(name string) string {
	v, _ := f.Get(name)
	return v
}

// Set replaces the value of name or appends the field.
func (f *Fields) Set(name, value string) {
	for i := range *f {
		if (*f)[i].Name == name {
			(*f)[i].Value = value
			return
		}
	}
	*f = append(*f, Field{name, value})
}

// Delete removes name. The order of the others stays.
func (f *Fields) Delete(name string) {
	kept := (*f)[:0]
	for _, e := range *f {
		if e.Name != name {
			kept = append(kept, e)
		}
	}
	clear((*f)[len(kept):])
	*f = kept
}

// All yields names and values in order.
func (f Fields) All() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for _, e := range f {
			if !yield(e.Name, e.Value) {
				return
			}
		}
	}
}

// Language is the implementation language of a peer, as it says itself
// (upstream: LanguageCode). The value is the byte of the binary header.
type Language uint8

const (
	LanguageJava Language = iota
	LanguageCPP
	LanguageDotNet
	LanguagePython
	LanguageDelphi
	LanguageErlang
	LanguageRuby
	LanguageOther
	LanguageHTTP
	LanguageGo
	LanguagePHP
	LanguageOMS
	LanguageRust
	LanguageNodeJS

	// LanguageUnknown stands for any text or number not in the list, and
	// for none. It goes out as OTHER.
	LanguageUnknown Language = 0xFF
)

var languageNames = [...]string{
	"JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST", "NODE_JS",
}

func (l Language) String() string {
	if int(l) < len(languageNames) {
		return languageNames[l]
	}
	return "OTHER"
}

// ParseLanguage finds the language of a name; LanguageUnknown if there is none.
func ParseLanguage(name string) Language {
	for i, n := range languageNames {
		if n == name {
			return Language(i)
		}
	}
	return LanguageUnknown
}

func languageOf(ordinal int64) Language {
	if ordinal >= 0 && ordinal < int64(len(languageNames)) {
		return Language(ordinal)
	}
	return LanguageUnknown
}
