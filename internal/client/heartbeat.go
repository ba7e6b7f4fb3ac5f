package client

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/gantrymq/gantry/remoting"
)

// maxParallel bounds the servers that one loop asks at the same time.
const maxParallel = 8

// keepHeartbeats tells brokers of our groups: all of them every 30 s, and those
// that do not know yet at once.
func (c *Client) keepHeartbeats(ctx context.Context) {
	t := time.NewTicker(heartbeatInterval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			c.beatAll(ctx, true)
		case <-c.beatNow:
			c.beatAll(ctx, false)
		}
	}
}

// beatAll sends heartbeats to the brokers of all routes in use: with consumers
// to every replica, else to the masters. Without force those that have heard of
// all groups on their connection are left out.
func (c *Client) beatAll(ctx context.Context, force bool) {
	c.mu.Lock()
	producers, consumers := len(c.mu.producers), len(c.mu.consumers)
	c.mu.Unlock()
	if producers+consumers == 0 {
		return
	}
	c.each(ctx, c.routes.addrs(consumers > 0), func(addr string) {
		if err := c.beat(ctx, addr, force); err != nil && ctx.Err() == nil {
			c.log.Info("heartbeat failed", "broker", addr, "err", err)
		}
	})
}

// each calls f for each address, some at a time, and waits for all of them.
func (c *Client) each(ctx context.Context, addrs []string, f func(addr string)) {
	var wg sync.WaitGroup
	defer wg.Wait()
	places := make(chan struct{}, maxParallel)
	for _, addr := range addrs {
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			return
		}
		wg.Go(func() {
			f(addr)
			<-places
		})
	}
}

// beat sends a heartbeat to a broker. Without force it does nothing if the
// broker knows all groups of now.
func (c *Client) beat(ctx context.Context, addr string, force bool) error {
	within, cancel := context.WithTimeout(ctx, c.opts.Timeout)
	defer cancel()
	conn, err := c.rc.Conn(within, addr)
	if err != nil {
		return err
	}
	state := c.state(conn)
	select {
	case state.beating <- struct{}{}:
	case <-within.Done():
		return fmt.Errorf("heartbeat to %s: %w", addr, within.Err())
	}
	defer func() { <-state.beating }()
	body, registration := c.heartbeat()
	if !force && state.registered == registration {
		return nil
	}
	req := remoting.NewRequest(remoting.ReqHeartBeat, nil)
	req.Body = remoting.EncodeBody(body)
	resp, err := c.invokeOn(ctx, within, conn, req)
	if err != nil {
		return err
	}
	if err := resp.Err(); err != nil {
		return fmt.Errorf("heartbeat to %s: %w", addr, err)
	}
	state.registered = registration
	return nil
}

// heartbeat returns who we are now.
func (c *Client) heartbeat() (*remoting.Heartbeat, uint64) {
	h := &remoting.Heartbeat{ClientID: c.opts.ClientID}
	c.mu.Lock()
	defer c.mu.Unlock()
	for group := range c.mu.producers {
		h.Producers = append(h.Producers, remoting.ProducerData{GroupName: group})
	}
	for _, cs := range c.mu.consumers {
		h.Consumers = append(h.Consumers, cs.data())
	}
	slices.SortFunc(h.Producers, func(a, b remoting.ProducerData) int { return cmp.Compare(a.GroupName, b.GroupName) })
	slices.SortFunc(h.Consumers, func(a, b remoting.ConsumerData) int { return cmp.Compare(a.GroupName, b.GroupName) })
	return h, c.mu.registration
}

// unregister tells the brokers that a group of ours is gone.
func (c *Client) unregister(ctx context.Context, h *remoting.UnregisterClientRequest) {
	h.ClientID = c.opts.ClientID
	req := remoting.NewRequest(remoting.ReqUnregisterClient, h)
	c.each(ctx, c.routes.addrs(h.ConsumerGroup != ""), func(addr string) {
		if err := c.unregisterAt(ctx, addr, req); err != nil {
			c.log.Info("not unregistered", "broker", addr, "producerGroup", h.ProducerGroup, "consumerGroup", h.ConsumerGroup, "err", err)
		}
	})
}

func (c *Client) unregisterAt(ctx context.Context, addr string, req *remoting.Command) error {
	within, cancel := context.WithTimeout(ctx, c.opts.Timeout)
	defer cancel()
	conn, err := c.rc.Conn(within, addr)
	if err != nil {
		return err
	}
	state := c.state(conn)
	select {
	case state.beating <- struct{}{}:
	case <-within.Done():
		return within.Err()
	}
	defer func() { <-state.beating }()
	if state.registered == 0 {
		return nil // this connection told nothing, and the broker forgets closed ones
	}
	resp, err := c.invokeOn(ctx, within, conn, req)
	if err != nil {
		return err
	}
	return resp.Err()
}
