package golden

import (
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gantrymq/gantry/message"
)

// maxManifestSize limits an unpacked manifest; the largest has 2.3 MB.
const maxManifestSize = 32 << 20

// Kind says how a store was left.
type Kind string

// The kinds. Of a clean or broker store a reader must see exactly the
// manifest. Of a crashed one the manifest says what Java holds after its own
// recovery, except PackedFiles and Checkpoint, which describe the archive.
const (
	Clean  Kind = "clean"  // closed by the harness
	Crash  Kind = "crash"  // copied while running, perhaps damaged afterwards
	Broker Kind = "broker" // closed by a real broker
)

// Manifest is what the Java version that wrote a store says of it. Offsets,
// times (ms since 1970) and hashes are exact.
type Manifest struct {
	Store         string                 `json:"store"` // without the version
	Kind          Kind                   `json:"kind"`
	Version       string                 `json:"version"` // of RocketMQ
	Java          string                 `json:"java"`
	TimeZone      string                 `json:"timeZone"` // of the names of index files; see Location
	Config        Config                 `json:"config"`
	UnknownConfig []string               `json:"configNotInThisVersion"`
	TopicConfig   map[string]TopicConfig `json:"topicConfig"`
	Notes         []string               `json:"notes"`
	RunNotes      string                 `json:"runNotes"`
	Damage        Damage                 `json:"damage"`

	PackedFiles []File     `json:"packedFiles"` // the archive
	Checkpoint  Checkpoint `json:"checkpoint"`  // the file of the archive
	Reopen      Reopen     `json:"reopen"`

	// What the reopened store holds and answers.
	Observation
	QueuesAfterUnknownReads []Queue `json:"queuesAfterUnknownReads"`

	// The state of the running store at the end, before its files were
	// cleaned, and when the older part of a crash-lag store was copied.
	Live               *State `json:"live"`
	LiveBeforeCleaning *State `json:"liveBeforeCleaning"`
	LiveAtEarlierCopy  *State `json:"liveAtEarlierCopy"`

	Puts       []Put        `json:"puts"` // in order, refused ones too; none for broker stores
	Timer      *Timer       `json:"timer"`
	Compaction []Compaction `json:"compaction"`
	Client     *Client      `json:"client"` // broker stores: what producer and consumers saw
}

// Observation is what a store holds and answers. The interop program of Java
// prints the same structure.
type Observation struct {
	MinPhysicalOffset message.PhysicalOffset `json:"minPhysicalOffset"`
	MaxPhysicalOffset message.PhysicalOffset `json:"maxPhysicalOffset"`
	WalkStopped       string                 `json:"walkStopped"` // where Java could not read on; "" when it came to the end
	Messages          []Message              `json:"messages"`    // in the order of the log
	Blanks            []Blank                `json:"blanks"`
	Queues            []Queue                `json:"queues"` // sorted by topic and queue id
	KeyQueries        []KeyQuery             `json:"keyQueries"`
	TagQueries        []TagQuery             `json:"tagQueries"` // none before 5.4.0
	TimeQueries       []TimeQuery            `json:"timeQueries"`
	GetMessage        []Get                  `json:"getMessage"`
	Lookups           []Lookup               `json:"lookups"`
}

// TopicConfig is a topic's setting where a store needed one.
type TopicConfig struct {
	Queues     int               `json:"queues"`
	Attributes map[string]string `json:"attributes"` // "queue.type", "cleanup.policy"
}

// Damage says what was done to a copied store.
type Damage struct {
	Note string // the description of a copy that was not damaged

	// Crash-torn: the record at Torn, of TornSize bytes, is zero from
	// ZeroedFrom to ZeroedTo, positions in the log.
	Torn       message.PhysicalOffset
	TornSize   int32
	ZeroedFrom message.PhysicalOffset
	ZeroedTo   message.PhysicalOffset

	// Crash-middle: the byte at FlippedAt, in the body of the record at
	// Flipped, was XORed with XOR. The checkpoint's first 48 bytes are zero.
	Flipped   message.PhysicalOffset
	FlippedAt message.PhysicalOffset
	XOR       byte
}

// UnmarshalJSON accepts a text or an object.
func (d *Damage) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] != '{' {
		return json.Unmarshal(b, &d.Note)
	}
	var v struct {
		TornRecord    message.PhysicalOffset `json:"tornRecord"`
		Size          int32                  `json:"size"`
		ZeroedFrom    message.PhysicalOffset `json:"zeroedFrom"`
		ZeroedTo      message.PhysicalOffset `json:"zeroedTo"`
		DamagedRecord message.PhysicalOffset `json:"damagedRecord"`
		FlippedByteAt message.PhysicalOffset `json:"flippedByteAt"`
		XOR           byte                   `json:"xor"`
		Checkpoint    string                 `json:"checkpoint"`
	}
	if err := strict(b, &v); err != nil {
		return err
	}
	*d = Damage{Note: v.Checkpoint, Torn: v.TornRecord, TornSize: v.Size, ZeroedFrom: v.ZeroedFrom, ZeroedTo: v.ZeroedTo,
		Flipped: v.DamagedRecord, FlippedAt: v.FlippedByteAt, XOR: v.XOR}
	return nil
}

// Checkpoint is the checkpoint file as Java reads it. The last three are zero
// where the version does not have them.
type Checkpoint struct {
	Present              *bool                  `json:"present"` // nil: there is one
	PhysicMsgTimestamp   int64                  `json:"physicMsgTimestamp"`
	LogicsMsgTimestamp   int64                  `json:"logicsMsgTimestamp"`
	IndexMsgTimestamp    int64                  `json:"indexMsgTimestamp"`
	MinTimestamp         int64                  `json:"minTimestamp"`
	MinTimestampIndex    int64                  `json:"minTimestampIndex"`
	MasterFlushedOffset  message.PhysicalOffset `json:"masterFlushedOffset"`
	ConfirmPhyOffset     message.PhysicalOffset `json:"confirmPhyOffset"`
	LogicsPhysicalOffset message.PhysicalOffset `json:"logicsPhysicalOffset"`
	FileSize             int64                  `json:"fileSize"`
	First64              Hex                    `json:"first64Hex"`
}

// State is a summary of a running store.
type State struct {
	MinPhysicalOffset   message.PhysicalOffset  `json:"minPhysicalOffset"`
	MaxPhysicalOffset   message.PhysicalOffset  `json:"maxPhysicalOffset"`
	FlushedWhere        *message.PhysicalOffset `json:"flushedWhere"`
	ConfirmOffset       message.PhysicalOffset  `json:"confirmOffset"`
	DispatchBehindBytes int64                   `json:"dispatchBehindBytes"`
	Queues              []Queue                 `json:"queues"` // without units
}

// Reopen is what happened when Java opened the store to observe it.
type Reopen struct {
	Load                    bool       `json:"load"`
	AfterLoad               State      `json:"afterLoad"`
	Dispatched              bool       `json:"dispatched"`
	AfterStart              State      `json:"afterStart"`
	ReadableMessages        int        `json:"readableMessages"`
	FilesBeforeUnknownReads []string   `json:"filesBeforeUnknownReads"`
	FilesAfterShutdown      []File     `json:"filesAfterShutdown"`
	CheckpointAfterShutdown Checkpoint `json:"checkpointAfterShutdown"`
}

// Message is a message as Java decodes it.
type Message struct {
	PhysicalOffset            message.PhysicalOffset `json:"physicalOffset"`
	Size                      int32                  `json:"size"` // of the record
	Magic                     Magic                  `json:"magic"`
	Topic                     string                 `json:"topic"`
	QueueID                   int32                  `json:"queueId"`
	QueueOffset               message.QueueOffset    `json:"queueOffset"`
	SysFlag                   message.SysFlag        `json:"sysFlag"`
	Flag                      int32                  `json:"flag"`
	BornTimestamp             int64                  `json:"bornTimestamp"`
	BornHost                  netip.AddrPort         `json:"bornHost"`
	StoreTimestamp            int64                  `json:"storeTimestamp"`
	StoreHost                 netip.AddrPort         `json:"storeHost"`
	ReconsumeTimes            int32                  `json:"reconsumeTimes"`
	PreparedTransactionOffset message.PhysicalOffset `json:"preparedTransactionOffset"`
	BodyLength                int32                  `json:"bodyLength"`
	BodyCRC                   uint32                 `json:"bodyCRC"`
	BodySHA256                Hash                   `json:"bodySHA256"` // of the stored body
	Body                      Hex                    `json:"bodyHex"`    // nil above 16 bytes
	Uncompressed              *Body                  `json:"uncompressed"`
	// Properties is what Java's parser makes of RawProperties; nil where it
	// returns none.
	Properties    map[string]string `json:"properties"`
	RawProperties Hex               `json:"propertiesHex"`
	ID            string            `json:"msgId"`     // offset id
	RawSHA256     Hash              `json:"rawSHA256"` // of the whole record
	Dispatch      *Dispatch         `json:"dispatch"`
	Undecodable   bool              `json:"undecodable"` // then only RawSHA256 is set
}

// Body describes a body after decompression.
type Body struct {
	Length int32 `json:"bodyLength"`
	SHA256 Hash  `json:"bodySHA256"`
}

// Dispatch is what Java hands to queues and index for a record.
type Dispatch struct {
	TagsCode       message.TagsCode    `json:"tagsCode"`
	Keys           *string             `json:"keys"`
	UniqKey        *string             `json:"uniqKey"`
	QueueOffset    message.QueueOffset `json:"queueOffset"`
	StoreTimestamp int64               `json:"storeTimestamp"`
	BatchSize      int32               `json:"batchSize"` // 0: 1
	MsgBaseOffset  message.QueueOffset `json:"msgBaseOffset"`
}

// Blank is a record that fills the end of a log file.
type Blank struct {
	PhysicalOffset message.PhysicalOffset `json:"physicalOffset"`
	Size           int32                  `json:"size"`
	Magic          Magic                  `json:"magic"`
}

// Queue is a consume queue. Units[i] belongs to queue offset Min+i.
type Queue struct {
	Topic             string                 `json:"topic"`
	ID                int32                  `json:"queueId"`
	Min               message.QueueOffset    `json:"min"`
	Max               message.QueueOffset    `json:"max"`
	Type              string                 `json:"type"` // "ConsumeQueue" or "BatchConsumeQueue"
	MaxPhysicalOffset message.PhysicalOffset `json:"maxPhysicOffset"`
	Units             []Unit                 `json:"units"`
	UnitsStopped      *message.QueueOffset   `json:"unitsStopped"` // where Java could not read on
	Ext               []ExtUnit              `json:"ext"`
	BatchUnits        []BatchUnit            `json:"batchUnits"`
}

// Unit is a consume queue entry.
type Unit struct {
	Physical message.PhysicalOffset
	Size     int32
	TagsCode message.TagsCode
}

// UnmarshalJSON reads [physical, size, tagsCode].
func (u *Unit) UnmarshalJSON(b []byte) error {
	s, ok := strings.CutPrefix(string(b), "[")
	s, ok2 := strings.CutSuffix(s, "]")
	f := strings.Split(s, ",")
	if !ok || !ok2 || len(f) != 3 {
		return fmt.Errorf("unit %q is not an array of three", b)
	}
	phy, err1 := strconv.ParseInt(strings.TrimSpace(f[0]), 10, 64)
	size, err2 := strconv.ParseInt(strings.TrimSpace(f[1]), 10, 32)
	tags, err3 := strconv.ParseInt(strings.TrimSpace(f[2]), 10, 64)
	*u = Unit{message.PhysicalOffset(phy), int32(size), message.TagsCode(tags)}
	return errors.Join(err1, err2, err3)
}

// ExtUnit is the extension that a unit's tags code points to. Size is zero
// where Java finds none.
type ExtUnit struct {
	Offset       message.QueueOffset // of the unit
	Size         int16
	TagsCode     message.TagsCode
	MsgStoreTime int64
	BitMap       Hex // nil: none
}

// UnmarshalJSON accepts {"offset":…,"unit":null} for a missing extension.
func (x *ExtUnit) UnmarshalJSON(b []byte) error {
	var v struct {
		Offset       message.QueueOffset `json:"offset"`
		Size         int16               `json:"size"`
		TagsCode     message.TagsCode    `json:"tagsCode"`
		MsgStoreTime int64               `json:"msgStoreTime"`
		BitMap       Hex                 `json:"bitMapHex"`
		Unit         *struct{}           `json:"unit"`
	}
	if err := strict(b, &v); err != nil {
		return err
	}
	*x = ExtUnit{v.Offset, v.Size, v.TagsCode, v.MsgStoreTime, v.BitMap}
	return nil
}

// BatchUnit is an entry of a batch consume queue.
type BatchUnit struct {
	QueueOffset     message.QueueOffset    `json:"queueOffset"` // of the first message
	Pos             message.PhysicalOffset `json:"pos"`
	Size            int32                  `json:"size"`
	TagsCode        message.TagsCode       `json:"tagsCode"`
	BatchNum        int16                  `json:"batchNum"`
	CompactedOffset int32                  `json:"compactedOffset"`
}

// KeyQuery is a query by key. Begin and End are inclusive store times in ms.
type KeyQuery struct {
	Topic  string `json:"topic"`
	Key    string `json:"key"`
	Begin  int64  `json:"begin"`
	End    int64  `json:"end"`
	MaxNum int    `json:"maxNum"`
	// IndexOffsets is the answer of the index alone, newest first, with hash
	// collisions. MessageOffsets is the order of queryMessage.
	IndexOffsets   Offsets                `json:"indexPhyOffsets"`
	MessageOffsets Offsets                `json:"messagePhyOffsets"`
	LastUpdateTime int64                  `json:"indexLastUpdateTimestamp"`
	LastUpdatePhy  message.PhysicalOffset `json:"indexLastUpdatePhyoffset"`
	IndexError     string                 `json:"indexError"`
	MessageError   string                 `json:"messageError"`
}

// TagQuery is a query of the index by tag (5.4.0 and later).
type TagQuery struct {
	Topic        string  `json:"topic"`
	Tags         string  `json:"tags"`
	Begin        int64   `json:"begin"`
	End          int64   `json:"end"`
	MaxNum       int     `json:"maxNum"`
	KeyType      string  `json:"keyType"` // "T"
	IndexOffsets Offsets `json:"indexPhyOffsets"`
}

// TimeQuery is a queue offset by store time.
type TimeQuery struct {
	Topic     string               `json:"topic"`
	QueueID   int32                `json:"queueId"`
	Timestamp int64                `json:"timestamp"`
	Offset    message.QueueOffset  `json:"offset"`
	Lower     *message.QueueOffset `json:"lower"` // nil where the version has no boundary
	Upper     *message.QueueOffset `json:"upper"`
}

// Get is an answer of getMessage.
type Get struct {
	Topic           string              `json:"topic"`
	QueueID         int32               `json:"queueId"`
	Offset          message.QueueOffset `json:"offset"`
	MaxMsgNums      int                 `json:"maxMsgNums"`
	Status          string              `json:"status"` // upstream's name
	NextBeginOffset message.QueueOffset `json:"nextBeginOffset"`
	MinOffset       message.QueueOffset `json:"minOffset"`
	MaxOffset       message.QueueOffset `json:"maxOffset"`
	Count           int                 `json:"count"`
	BufferTotalSize int                 `json:"bufferTotalSize"`
	PhyOffsets      Offsets             `json:"phyOffsets"`
}

// Lookup is an answer of lookMessageByOffset. ID is empty when there was none.
type Lookup struct {
	PhysicalOffset  message.PhysicalOffset  `json:"physicalOffset"`
	ID              string                  `json:"msgId"`
	CommitLogOffset *message.PhysicalOffset `json:"commitLogOffset"`
}

// Put is one put and its result. The fields from AppendStatus on are zero when
// the message was refused before the log; a put without Status is a remark.
type Put struct {
	Number         int                    `json:"i"`
	Topic          string                 `json:"topic"`
	QueueID        int32                  `json:"queueId"`
	What           string                 `json:"what"` // what the message shows, may be empty
	Status         string                 `json:"status"`
	AppendStatus   string                 `json:"append"`
	PhysicalOffset message.PhysicalOffset `json:"physicalOffset"`
	Bytes          int32                  `json:"bytes"`
	ID             string                 `json:"msgId"`
	StoreTimestamp int64                  `json:"storeTimestamp"`
	LogicsOffset   message.QueueOffset    `json:"logicsOffset"`
	Messages       int                    `json:"msgNum"` // 0: 1

	// The interop program also says what it sent.
	Sent *Sent `json:"sent"`
}

// Sent is what the interop program of Java put, a batch as its bytes.
type Sent struct {
	SysFlag    message.SysFlag `json:"sysFlag"`
	BodyLength int32           `json:"bodyLength"`
	BodySHA256 Hash            `json:"bodySHA256"`
	Keys       string          `json:"keys"`
	Tags       string          `json:"tags"`
}

// Timer is the timer wheel and its log.
type Timer struct {
	Slots []struct {
		TimeMs   int64 `json:"timeMs"`
		FirstPos int64 `json:"firstPos"`
		LastPos  int64 `json:"lastPos"`
		Num      int32 `json:"num"`
		Magic    int32 `json:"magic"`
	} `json:"slots"`
	LogStop struct {
		Position int64 `json:"position"`
		Size     int32 `json:"size"`
		Prev     int64 `json:"prev"`
		Magic    int32 `json:"magic"`
	} `json:"logStop"`
	LogUnits []struct {
		Position  int64                  `json:"position"`
		Prev      int64                  `json:"prev"`
		Magic     int32                  `json:"magic"`
		WriteTime int64                  `json:"writeTime"`
		Delay     int32                  `json:"delay"`
		Phy       message.PhysicalOffset `json:"phy"`
		Size      int32                  `json:"size"`
		TopicHash int32                  `json:"topicHash"`
		Reserved  int64                  `json:"reserved"`
	} `json:"logUnits"`
}

// Compaction is what Java returns for a queue of a compacted topic.
type Compaction struct {
	Topic    string           `json:"topic"`
	QueueID  int32            `json:"queueId"`
	Reads    []CompactionRead `json:"reads"`
	Messages []struct {
		QueueOffset message.QueueOffset `json:"queueOffset"`
		Position    int64               `json:"positionInCompactionLog"`
		Size        int32               `json:"size"`
		Keys        string              `json:"keys"`
		BodySHA256  Hash                `json:"bodySHA256"`
	} `json:"messages"`
}

// CompactionRead is one getMessage of a compacted queue.
type CompactionRead struct {
	Offset message.QueueOffset
	Status string
	Next   message.QueueOffset
	Count  int
}

// UnmarshalJSON reads [offset, status, next, count].
func (r *CompactionRead) UnmarshalJSON(b []byte) error {
	var f []json.RawMessage
	if err := json.Unmarshal(b, &f); err != nil {
		return err
	}
	if len(f) != 4 {
		return fmt.Errorf("compaction read %s is not an array of four", b)
	}
	return errors.Join(json.Unmarshal(f[0], &r.Offset), json.Unmarshal(f[1], &r.Status),
		json.Unmarshal(f[2], &r.Next), json.Unmarshal(f[3], &r.Count))
}

// Client is what the producer and the consumers of a broker store saw.
type Client struct {
	Sent []struct {
		What          string              `json:"what"`
		Status        string              `json:"status"`
		MsgID         string              `json:"msgId"` // unique key; several, with commas, for a batch
		OffsetMsgID   string              `json:"offsetMsgId"`
		Topic         string              `json:"topic"`
		QueueID       int32               `json:"queueId"`
		QueueOffset   message.QueueOffset `json:"queueOffset"`
		TransactionID string              `json:"transactionId"`
	} `json:"sent"`
	Consumed map[string]int `json:"consumed"` // by group
}

// decodeManifest reads a gzipped manifest. Unknown fields are errors, so that
// nothing a manifest says is overlooked.
func decodeManifest(r io.Reader) (*Manifest, error) {
	zr, err := gzip.NewReader(r)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(zr, maxManifestSize+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxManifestSize {
		return nil, fmt.Errorf("more than %d bytes", maxManifestSize)
	}
	m := &Manifest{}
	if err := strict(b, m); err != nil {
		return nil, err
	}
	return m, nil
}

// AtLeast reports whether the store was written by the given RocketMQ version
// or a later one.
func (m *Manifest) AtLeast(version string) bool { return CompareVersions(m.Version, version) >= 0 }

// CompareVersions orders dotted version numbers.
func CompareVersions(a, b string) int {
	number := func(s string) int {
		n, _ := strconv.Atoi(s)
		return n
	}
	return slices.CompareFunc(strings.Split(a, "."), strings.Split(b, "."), func(x, y string) int {
		return cmp.Compare(number(x), number(y))
	})
}

// IndexesTags reports whether Java indexed tags as well as keys.
func (m *Manifest) IndexesTags() bool { return m.AtLeast("5.4.0") }

// Location is the time zone of the names of index files. Where the system has
// no data for it, the fixed offset of the two zones in use is returned.
func (m *Manifest) Location() *time.Location {
	if loc, err := time.LoadLocation(m.TimeZone); err == nil {
		return loc
	}
	if m.TimeZone == "Asia/Shanghai" {
		return time.FixedZone(m.TimeZone, 8*60*60)
	}
	return time.UTC
}

// Queue returns a queue, or nil.
func (o *Observation) Queue(topic string, id int32) *Queue {
	for i := range o.Queues {
		if o.Queues[i].Topic == topic && o.Queues[i].ID == id {
			return &o.Queues[i]
		}
	}
	return nil
}

// Message returns the message whose record starts at phy, or nil.
func (o *Observation) Message(phy message.PhysicalOffset) *Message {
	i, ok := slices.BinarySearchFunc(o.Messages, phy, func(m Message, phy message.PhysicalOffset) int {
		return cmp.Compare(m.PhysicalOffset, phy)
	})
	if !ok {
		return nil
	}
	return &o.Messages[i]
}
