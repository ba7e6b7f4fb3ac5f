package metadata

import (
	"fmt"
	"strconv"

	"github.com/gantrymq/gantry/internal/sqlfilter"
)

// filtersContent is a consumerFilter.json:
//
//	{"filterDataByTopic":{"topic":{"groupFilterData":{"group":{
//	   "bloomFilterData":{"bitNum":112,"bitPos":[55,9,75]},
//	   "bornTime":1704067200000,"clientVersion":1704067200000,"consumerGroup":"group","dead":false,
//	   "deadTime":0,"expression":"price > 10","expressionType":"SQL92","topic":"topic"}},"topic":"topic"}}}
//
// The names in the tables count. dead repeats deadTime.
type filtersContent struct {
	filters map[[2]string]*Filter // by topic and group
	bits    map[[2]string]int     // bitNum of each
	bytes   int                   // of the expressions
	kept    unknown
}

// UnmarshalJSON reads what encoding/json has found well-formed.
func (c *filtersContent) UnmarshalJSON(data []byte) error {
	c.filters, c.bits = make(map[[2]string]*Filter), make(map[[2]string]int)
	return eachMember(data, func(name string, v []byte) error {
		if name != "filterDataByTopic" {
			return c.kept.keep(name, v)
		}
		clear(c.filters)
		clear(c.bits)
		c.bytes = 0
		if isNull(v) {
			return nil
		}
		return in(name, eachMember(v, c.topic))
	})
}

func (c *filtersContent) topic(topic string, v []byte) error {
	if isNull(v) {
		return nil
	}
	return in(topic, eachMember(v, func(name string, v []byte) error {
		if name != "groupFilterData" || isNull(v) {
			return nil // the topic again
		}
		return eachMember(v, func(group string, v []byte) error {
			if isNull(v) {
				return nil
			}
			return in(group, c.filter(topic, group, v))
		})
	}))
}

func (c *filtersContent) filter(topic, group string, v []byte) error {
	f := &Filter{Topic: topic, Group: group}
	bits := 0
	err := eachMember(v, func(name string, v []byte) (err error) {
		switch name {
		case "bloomFilterData":
			bits, f.Positions = 0, nil
			if !isNull(v) {
				err = eachMember(v, func(name string, v []byte) error { return f.readBloom(&bits, name, v) })
			}
		case "bornTime":
			f.BornTime, err = intOf(v, 64)
		case "clientVersion":
			f.ClientVersion, err = intOf(v, 64)
		case "deadTime":
			f.DeadTime, err = intOf(v, 64)
		case "expression":
			f.Expression, err = textOf(v)
		case "expressionType":
			f.Type, err = textOf(v)
		case "consumerGroup", "topic", "dead":
		default:
			return f.unknown.keep(name, v)
		}
		return in(name, err)
	})
	if err != nil {
		return err
	}
	key := [2]string{topic, group}
	if old := c.filters[key]; old != nil { // of several with one name the last counts
		c.bytes -= len(old.Expression)
	}
	c.filters[key], c.bits[key] = f, bits
	c.bytes += len(f.Expression)
	if len(c.filters) > MaxFilters || c.bytes > MaxExpressions {
		return fmt.Errorf("more than %d filters or %d bytes of expressions", MaxFilters, MaxExpressions)
	}
	return nil
}

func (f *Filter) readBloom(bits *int, name string, v []byte) error {
	switch name {
	case "bitNum":
		n, err := intOf(v, 32)
		*bits = int(n)
		return in(name, err)
	case "bitPos":
		f.Positions = nil
		return in(name, eachInt(v, func(n int64) error {
			if f.Positions = append(f.Positions, int(n)); len(f.Positions) > maxPositions {
				return fmt.Errorf("more than %d positions", maxPositions)
			}
			return nil
		}))
	}
	return nil
}

// maxPositions bounds the bits of one group; upstream's default has 3.
const maxPositions = 64

// misfit says why the filters do not belong to a Bloom filter; "" if they do.
func (c *filtersContent) misfit(bloom sqlfilter.Bloom) string {
	for key, f := range c.filters {
		if !bloom.Valid(c.bits[key], f.Positions) {
			return fmt.Sprintf("group %.120q on topic %.127q has %d of %d bits, not %d of %d",
				f.Group, f.Topic, len(f.Positions), c.bits[key], bloom.Hashes(), bloom.Bits())
		}
	}
	return ""
}

func (f *Filters) encode() []byte {
	topics := f.table.collect()
	dst := append(appendName([]byte("{"), "filterDataByTopic"), '{')
	for _, topic := range sortedKeys(topics) {
		dst = append(appendName(dst, topic), `{"groupFilterData":{`...)
		for _, e := range topics[topic] {
			dst = e.appendTo(appendName(dst, e.Group), f.bloom.Bits())
		}
		dst = append(appendText(append(dst, `},"topic":`...), topic), '}')
	}
	dst = append(dst, '}', '}')
	return f.kept.appendTo(dst)
}

func (f *Filter) appendTo(dst []byte, bits int) []byte {
	dst = strconv.AppendInt(append(dst, `{"bloomFilterData":{"bitNum":`...), int64(bits), 10)
	dst = append(dst, `,"bitPos":[`...)
	for i, p := range f.Positions {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendInt(dst, int64(p), 10)
	}
	dst = strconv.AppendInt(append(dst, `]},"bornTime":`...), f.BornTime, 10)
	dst = strconv.AppendInt(append(dst, `,"clientVersion":`...), f.ClientVersion, 10)
	dst = appendText(append(dst, `,"consumerGroup":`...), f.Group)
	dst = strconv.AppendBool(append(dst, `,"dead":`...), f.Dead())
	dst = strconv.AppendInt(append(dst, `,"deadTime":`...), f.DeadTime, 10)
	dst = appendText(append(dst, `,"expression":`...), f.Expression)
	dst = appendText(append(dst, `,"expressionType":`...), f.Type)
	dst = append(appendText(append(dst, `,"topic":`...), f.Topic), '}')
	return f.unknown.appendTo(dst)
}
