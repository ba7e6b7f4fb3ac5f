package check

import (
	"fmt"
	"strings"
	"sync"
	"unicode"
)

const (
	// perFile is how many findings of one rule in one file are reported one by
	// one; a damaged range of a million units is a few lines.
	perFile = 10
	// perRule is the same for the whole run, so that one rule does not use up
	// Options.MaxFindings.
	perRule = 200
	// maxKept is how many findings of one rule wait in sinks; what comes
	// later is only counted, so that a store of 100 000 damaged queues does
	// not fill the memory with texts.
	maxKept = 1000
)

// reporter passes findings on, counts them, and holds back what is too much.
type reporter struct {
	mu     sync.Mutex
	report func(Finding)
	limit  int
	passed int
	counts [Error + 1]int
	rules  map[*rule]*ruleState
	order  []*ruleState // of first occurrence
}

// ruleState is what was seen of one rule.
type ruleState struct {
	rule   *rule
	kept   int // in sinks, now or earlier
	passed int
	held   int64    // places of findings that were not passed on
	worst  Severity // of them
	file   string   // of the last of them
}

func newReporter(report func(Finding), limit int) *reporter {
	if report == nil {
		report = func(Finding) {}
	}
	return &reporter{report: report, limit: limit, rules: map[*rule]*ruleState{}}
}

// stateLocked returns what is known of a rule. r.mu is held.
func (r *reporter) stateLocked(ru *rule) *ruleState {
	st := r.rules[ru]
	if st == nil {
		st = &ruleState{rule: ru}
		r.rules[ru] = st
		r.order = append(r.order, st)
	}
	return st
}

func (r *reporter) emit(ru *rule, f Finding) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts[f.Severity]++
	st := r.stateLocked(ru)
	if st.passed >= perRule || r.passed >= r.limit {
		st.hold(f)
		return
	}
	st.passed++
	r.passed++
	r.report(f)
}

func (st *ruleState) hold(f Finding) {
	st.held += f.Count
	st.worst = max(st.worst, f.Severity)
	st.file = f.File
}

// crowded reports whether a finding should not be kept but was counted, because
// there are enough of its rule.
func (r *reporter) crowded(ru *rule, f Finding) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	st := r.stateLocked(ru)
	if st.kept < maxKept {
		st.kept++
		return false
	}
	r.counts[f.Severity]++
	st.hold(f)
	return true
}

// finish reports what was held back, one finding for each rule.
func (r *reporter) finish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, st := range r.order {
		if st.held == 0 {
			continue
		}
		r.report(Finding{
			Severity: st.worst, Rule: st.rule.name, File: st.file, Count: st.held,
			Detail:  fmt.Sprintf("%d more places, the last in this file", st.held),
			Meaning: st.rule.meaning, Repair: st.rule.repair,
		})
	}
}

// sink collects the findings of one task, in order. Tasks run in parallel;
// their sinks are flushed in the order of the files. A sink keeps at most
// perFile findings of a rule and file and counts the others.
type sink struct {
	rep    *reporter
	moving bool // about files that somebody writes to: no finding is worse than Info
	list   []kept
	groups map[groupKey]*group
}

type kept struct {
	rule *rule
	f    Finding
}

type groupKey struct {
	rule *rule
	file string
}

type group struct {
	n     int
	more  int64
	worst Severity
	last  int64 // offset
}

func (c *checker) sink() *sink { return &sink{rep: c.rep} }

// movingSink is sink for files that change while they are read if the store is
// in use.
func (c *checker) movingSink() *sink { return &sink{rep: c.rep, moving: c.live} }

// add reports a violation with the rule's own severity, meaning and repair.
func (s *sink) add(r *rule, file string, off int64, format string, args ...any) {
	s.addAs(r, r.severity, file, off, format, args...)
}

// addAs is add with another severity.
func (s *sink) addAs(r *rule, sev Severity, file string, off int64, format string, args ...any) {
	s.put(r, Finding{Severity: sev, File: file, Offset: off, Count: 1}, format, args...)
}

// put completes f and keeps it. The text is made only if it will be shown.
func (s *sink) put(r *rule, f Finding, format string, args ...any) {
	f.File = printable(f.File)
	if s.moving && f.Severity > Info {
		f.Severity, f.Repair = Info, repairNone
		f.Meaning = "the store is in use: what is being written is not judged"
	}
	key := groupKey{r, f.File}
	g := s.groups[key]
	if (g == nil || g.n < perFile) && s.rep.crowded(r, f) {
		return
	}
	if g == nil {
		if s.groups == nil {
			s.groups = map[groupKey]*group{}
		}
		g = &group{}
		s.groups[key] = g
	}
	if g.n >= perFile {
		g.more += f.Count
		g.worst = max(g.worst, f.Severity)
		g.last = f.Offset
		return
	}
	g.n++
	f.Rule = r.name
	f.Offset = max(f.Offset, 0) // of a queue offset that nobody can mean
	f.Detail = printable(fmt.Sprintf(format, args...))
	if f.Meaning == "" {
		f.Meaning = r.meaning
	}
	if f.Repair == "" {
		f.Repair = r.repair
	}
	s.list = append(s.list, kept{r, f})
}

// printable replaces what a terminal would take for a command: file names and
// topics come from disk.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, s)
}

// take moves the findings of another sink behind those of s.
func (s *sink) take(from *sink) {
	s.list = append(s.list, from.list...)
	for key, g := range from.groups {
		have := s.groups[key]
		if have == nil {
			if s.groups == nil {
				s.groups = map[groupKey]*group{}
			}
			s.groups[key] = g
			continue
		}
		have.n += g.n
		have.more += g.more
		have.worst, have.last = max(have.worst, g.worst), max(have.last, g.last)
	}
	from.list, from.groups = nil, nil
}

// flush passes everything on and empties the sink.
func (s *sink) flush() {
	last := map[groupKey]int{}
	for i, k := range s.list {
		last[groupKey{k.rule, k.f.File}] = i
	}
	for i, k := range s.list {
		s.rep.emit(k.rule, k.f)
		key := groupKey{k.rule, k.f.File}
		if g := s.groups[key]; last[key] == i && g.more > 0 {
			s.rep.emit(k.rule, Finding{
				Severity: g.worst, Rule: k.rule.name, File: k.f.File, Offset: g.last, Count: g.more,
				Detail:  fmt.Sprintf("%d more places in this file, the last one here", g.more),
				Meaning: k.f.Meaning, Repair: k.f.Repair,
			})
		}
	}
	s.list, s.groups = nil, nil
}
