package membership

import (
	"fmt"
	"slices"
	"time"
)

// maxDisorder is how much later than it was read a time may be put to use.
const maxDisorder = 10 * time.Second

// broken returns which invariant of the registry does not hold, or "". Nothing
// else may use the registry meanwhile.
func broken(r *Registry) string {
	paid := make(map[*holder[consumerGroup]]int64)
	var unpaid int64
	for name, g := range r.Members.mu.groups {
		i := &g.info
		var cost int64
		for topic, s := range i.subs {
			if s.Topic() != topic {
				return fmt.Sprintf("%s has a subscription to %s at %s", name, s.Topic(), topic)
			}
			cost += s.cost
		}
		if cost != i.cost {
			return fmt.Sprintf("subscriptions of %s cost %d, not %d", name, cost, i.cost)
		}
		if ids := i.ids.Load(); ids != nil && !slices.EqualFunc(*ids, g.members, func(id string, m *member[consumerGroup]) bool { return id == m.ID }) {
			return fmt.Sprintf("%s has other members than %v", name, *ids)
		}
		if i.payer == nil {
			unpaid += cost
			continue
		}
		paid[i.payer] += cost
		if i.payer.members[name] == nil {
			return fmt.Sprintf("who pays for %s is not in it", name)
		}
	}
	if problem := brokenRoster(&r.Members.mu.roster, paid, unpaid); problem != "" {
		return "consumers: " + problem
	}
	for id, h := range r.Producers.mu.byClient {
		if r.Producers.mu.holders[h.conn] != h || h.client.ID != id {
			return fmt.Sprintf("producer %s is where %s is", id, h.client.ID)
		}
	}
	if problem := brokenRoster(&r.Producers.mu.roster, nil, 0); problem != "" {
		return "producers: " + problem
	}
	return ""
}

func brokenRoster[G any](r *roster[G], paid map[*holder[G]]int64, unpaid int64) string {
	total := unpaid
	members := 0
	for conn, h := range r.holders {
		used := connCost + paid[h]
		for name, m := range h.members {
			if m.holder != h || m.group != r.groups[name] || m.Conn != conn {
				return fmt.Sprintf("%s of %s is not where it should be", m.ID, name)
			}
			used += m.cost
			members++
		}
		if len(h.members) == 0 || h.conn != conn {
			return fmt.Sprintf("a useless holder: %+v", h)
		}
		if used != h.used {
			return fmt.Sprintf("a connection uses %d, not %d", used, h.used)
		}
		total += used
	}
	if total != r.account.used || members != r.members {
		return fmt.Sprintf("%d members use %d, not %d and %d", members, total, r.members, r.account.used)
	}
	inGroups := 0
	for name, g := range r.groups {
		if len(g.members) == 0 || g.name != name {
			return fmt.Sprintf("group %s has no members", name)
		}
		for i, m := range g.members {
			if i > 0 && g.members[i-1].ID >= m.ID || m.group != g {
				return fmt.Sprintf("%s has %s at a wrong place", name, m.ID)
			}
		}
		inGroups += len(g.members)
	}
	linked := 0
	var last *member[G]
	for m := r.oldest; m != nil; m = m.newer {
		if m.older != last || last != nil && m.LastSeen.Before(last.LastSeen) && last.LastSeen.Sub(m.LastSeen) > maxDisorder {
			return fmt.Sprintf("%s is not in order of time", m.ID)
		}
		last = m
		if linked++; linked > members {
			return "the list of members is a ring"
		}
	}
	if inGroups != members || linked != members || r.newest != last {
		return fmt.Sprintf("%d members in groups, %d in the list, %d with connections", inGroups, linked, members)
	}
	return ""
}
