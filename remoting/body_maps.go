package remoting

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// Lists and maps in bodies, for both directions. A list or map that is nil is
// written as empty, unless the name of the method begins with opt.

// elements calls fn with each element of a list, of some size, while reading.
func (o *object) elements(name string, size int, fn func(v []byte) error) {
	v := o.get(name)
	if v == nil {
		return
	}
	if v[0] != '[' {
		o.fail(name, fmt.Errorf("%s instead of a list", kindOf(v)))
		return
	}
	_, err := eachElement(v, 0, 0, func(e []byte) error {
		if err := o.reader.take(size); err != nil {
			return err
		}
		return fn(e)
	})
	o.fail(name, err)
}

// entries calls fn with each name and value of a map, of some size together,
// while reading. Names are as they stand in the text.
func (o *object) entries(name string, size int, fn func(key, value []byte) error) {
	v := o.get(name)
	if v == nil {
		return
	}
	if v[0] != '{' {
		o.fail(name, fmt.Errorf("%s instead of a map", kindOf(v)))
		return
	}
	_, err := eachMember(v, 0, 0, func(key, value []byte) error {
		if err := o.reader.take(entrySize + size); err != nil {
			return err
		}
		return fn(key, value)
	})
	o.fail(name, err)
}

// strs is a list of texts.
func (o *object) strs(name string, p *[]string) {
	if o.out == nil {
		*p = nil
		o.elements(name, textSize, func(v []byte) error {
			s, err := readText(v)
			*p = append(*p, s)
			return err
		})
		return
	}
	o.key(name)
	*o.out = append(*o.out, '[')
	for i, s := range *p {
		o.comma(i)
		*o.out = appendQuoted(*o.out, s)
	}
	*o.out = append(*o.out, ']')
}

// i32s is a list of integers.
func (o *object) i32s(name string, p *[]int32) {
	if o.out == nil {
		*p = nil
		o.elements(name, int32Size, func(v []byte) error {
			n, err := readInt(v, 32)
			*p = append(*p, int32(n))
			return err
		})
		return
	}
	o.key(name)
	*o.out = append(*o.out, '[')
	for i, n := range *p {
		o.comma(i)
		*o.out = strconv.AppendInt(*o.out, int64(n), 10)
	}
	*o.out = append(*o.out, ']')
}

func (o *object) comma(i int) {
	if i > 0 {
		*o.out = append(*o.out, ',')
	}
}

// list is a list of objects that is always written.
func list[T any, P pointerTo[T]](o *object, name string, p *[]T) {
	if o.out != nil {
		o.key(name)
		writeList[T, P](o, *p)
		return
	}
	*p = nil
	if v := o.get(name); v != nil {
		l, err := readList[T, P](v, o.reader)
		o.fail(name, err)
		*p = l
	}
}

// readValue reads one object; null is one without members.
func readValue[T any, P pointerTo[T]](v []byte, r *bodyReader) (T, error) {
	var e T
	if v[0] == 'n' {
		v = []byte("{}")
	}
	return e, r.object(v, P(&e))
}

// appendMap writes a map in the order that keys yields, each key by quote.
func appendMap[K comparable, V any](o *object, name string, keys []K, m map[K]V, quote func(K), value func(V)) {
	o.key(name)
	*o.out = append(*o.out, '{')
	for i, k := range keys {
		o.comma(i)
		quote(k)
		*o.out = append(*o.out, ':')
		value(m[k])
	}
	*o.out = append(*o.out, '}')
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

func (o *object) quoteText(s string) { *o.out = appendQuoted(*o.out, s) }

func (o *object) quoteInt(n int64) {
	*o.out = append(*o.out, '"')
	*o.out = strconv.AppendInt(*o.out, n, 10)
	*o.out = append(*o.out, '"')
}

func (o *object) int(n int64) { *o.out = strconv.AppendInt(*o.out, n, 10) }

// strMap is a map of texts that is always written.
func (o *object) strMap(name string, p *map[string]string) {
	if o.out == nil {
		*p = nil
		o.entries(name, 2*textSize, func(key, value []byte) error {
			k, err := readText(key)
			if err != nil || value[0] == 'n' {
				return err
			}
			s, err := readText(value)
			put(p, k, s)
			return err
		})
		return
	}
	appendMap(o, name, sortedKeys(*p), *p, o.quoteText, o.quoteText)
}

// optStrMap is a map of texts that is written unless it is nil.
func (o *object) optStrMap(name string, p *map[string]string) {
	if o.out == nil {
		o.strMap(name, p)
		if *p == nil && o.get(name) != nil {
			*p = make(map[string]string) // given, though empty
		}
	} else if *p != nil {
		o.strMap(name, p)
	}
}

func put[K comparable, V any](p *map[K]V, k K, v V) {
	if *p == nil {
		*p = make(map[K]V)
	}
	(*p)[k] = v
}

// mapOf is a map of objects by text that is always written.
func mapOf[T any, P pointerTo[T]](o *object, name string, p *map[string]T) {
	if o.out == nil {
		*p = nil
		o.entries(name, textSize+sizeOf[T](), func(key, value []byte) error {
			k, err := readText(key)
			if err != nil {
				return err
			}
			e, err := readValue[T, P](value, o.reader)
			if err != nil {
				return fmt.Errorf("%.100q: %w", k, err)
			}
			put(p, k, e)
			return nil
		})
		return
	}
	appendMap(o, name, sortedKeys(*p), *p, o.quoteText, func(e T) { o.write(P(&e)) })
}

// listsByText is a map of lists of objects by text.
func listsByText[T any, P pointerTo[T]](o *object, name string, p *map[string][]T) {
	if o.out == nil {
		*p = nil
		o.entries(name, textSize+sizeOf[[]T](), func(key, value []byte) error {
			k, err := readText(key)
			if err != nil {
				return err
			}
			l, err := readList[T, P](value, o.reader)
			put(p, k, l)
			return err
		})
		return
	}
	appendMap(o, name, sortedKeys(*p), *p, o.quoteText, func(l []T) { writeList[T, P](o, l) })
}

// readList reads a list of objects.
func readList[T any, P pointerTo[T]](v []byte, r *bodyReader) (l []T, err error) {
	if v[0] != '[' {
		return nil, fmt.Errorf("%s instead of a list", kindOf(v))
	}
	size := sizeOf[T]()
	_, err = eachElement(v, 0, 0, func(e []byte) error {
		if err := r.take(size); err != nil {
			return err
		}
		x, err := readValue[T, P](e, r)
		l = append(l, x)
		return err
	})
	return l, err
}

func writeList[T any, P pointerTo[T]](o *object, l []T) {
	*o.out = append(*o.out, '[')
	for i := range l {
		o.comma(i)
		o.write(P(&l[i]))
	}
	*o.out = append(*o.out, ']')
}

// strsByText is a map of lists of texts by text.
func (o *object) strsByText(name string, p *map[string][]string) {
	if o.out == nil {
		*p = nil
		o.entries(name, textSize+sizeOf[[]string](), func(key, value []byte) error {
			k, err := readText(key)
			if err != nil {
				return err
			}
			if value[0] != '[' {
				return fmt.Errorf("%.100q: %s instead of a list", k, kindOf(value))
			}
			put(p, k, nil)
			_, err = eachElement(value, 0, 0, func(e []byte) error {
				if err := o.reader.take(textSize); err != nil {
					return err
				}
				s, err := readText(e)
				(*p)[k] = append((*p)[k], s)
				return err
			})
			return err
		})
		return
	}
	appendMap(o, name, sortedKeys(*p), *p, o.quoteText, func(l []string) {
		*o.out = append(*o.out, '[')
		for i, s := range l {
			o.comma(i)
			*o.out = appendQuoted(*o.out, s)
		}
		*o.out = append(*o.out, ']')
	})
}

// addrs is a map of texts by integer.
func (o *object) addrs(name string, p *map[int64]string) {
	if o.out == nil {
		*p = nil
		o.entries(name, int64Size+textSize, func(key, value []byte) error {
			k, err := readInt(key, 64)
			if err != nil {
				return err
			}
			s, err := readText(value)
			put(p, k, s)
			return err
		})
		return
	}
	appendMap(o, name, sortedKeys(*p), *p, o.quoteInt, o.quoteText)
}

// offsets is a map of offsets by queue id.
func (o *object) offsets(name string, p *map[int32]int64) {
	if o.out == nil {
		*p = nil
		o.entries(name, int32Size+int64Size, func(key, value []byte) error { return readOffset(p, key, value) })
		return
	}
	o.key(name)
	o.writeOffsets(*p)
}

func readOffset(p *map[int32]int64, key, value []byte) error {
	k, err := readInt(key, 32)
	if err != nil {
		return err
	}
	n, err := readInt(value, 64)
	put(p, int32(k), n)
	return err
}

func (o *object) writeOffsets(m map[int32]int64) {
	*o.out = append(*o.out, '{')
	for i, k := range sortedKeys(m) {
		o.comma(i)
		o.quoteInt(int64(k))
		*o.out = append(*o.out, ':')
		o.int(m[k])
	}
	*o.out = append(*o.out, '}')
}

// offsetsByText is a map of such maps by text.
func (o *object) offsetsByText(name string, p *map[string]map[int32]int64) {
	if o.out == nil {
		*p = nil
		o.entries(name, textSize+int64Size, func(key, value []byte) error {
			k, err := readText(key)
			if err != nil {
				return err
			}
			if value[0] != '{' {
				return fmt.Errorf("%.100q: %s instead of a map", k, kindOf(value))
			}
			var m map[int32]int64
			_, err = eachMember(value, 0, 0, func(key, value []byte) error {
				if err := o.reader.take(entrySize + int32Size + int64Size); err != nil {
					return err
				}
				return readOffset(&m, key, value)
			})
			put(p, k, m)
			return err
		})
		return
	}
	appendMap(o, name, sortedKeys(*p), *p, o.quoteText, o.writeOffsets)
}
