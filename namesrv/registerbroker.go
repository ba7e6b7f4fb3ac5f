package namesrv

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/gantrymq/gantry/internal/javajson"
	"github.com/gantrymq/gantry/remoting"
)

// zoneField is the ext field with the zone that a broker or client is in.
const zoneField = "__ZONE_NAME"

// How long a broker may be silent, if it says so itself and if not.
const (
	defaultBrokerTimeout = 120 * time.Second
	maxBrokerTimeout     = 24 * time.Hour
)

// registerBroker answers 103 REGISTER_BROKER.
func (s *Server) registerBroker(_ context.Context, c *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
	h, err := decode[remoting.RegisterBrokerRequest](req)
	if err != nil {
		return nil, err
	}
	if h.BodyCRC32 != 0 && h.BodyCRC32 != remoting.BodyCRC(req.Body) {
		return nil, remoting.Errorf(remoting.CodeSystemError, "crc32 not match")
	}
	opts := s.options.Load()
	r, refused, err := newRegistration(&h, req, s.routes.bounds)
	if err != nil {
		return nil, err
	}
	if refused != nil {
		s.log.Warn("part of a registration refused", "cluster", h.ClusterName, "broker", h.BrokerName, "addr", h.BrokerAddr, "err", refused)
	}
	r.complete = opts.DeleteTopicWithBrokerRegistration
	r.owner = c
	found, err := s.routes.register(r)
	if c.Context().Err() != nil {
		// The connection closed meanwhile, and who removes what it registered
		// may have been too early.
		s.routes.ownerGone(c)
	}
	if err != nil {
		return nil, err
	}
	resp := successWith(&found)
	if !opts.DisableReturnOrderTopicConfig {
		if entries, ok := s.kv.namespace(orderNamespace); ok {
			resp.Body = remoting.EncodeBody(&remoting.KVTable{Table: entries})
		}
	}
	return resp, nil
}

// newRegistration checks a request. refused is an example of topics that are left
// out, since one odd topic should not keep a broker away.
func newRegistration(h *remoting.RegisterBrokerRequest, req *remoting.Command, b bounds) (r *registration, refused, err error) {
	for _, err := range []error{
		checkName("brokerName", h.BrokerName, maxNameLen),
		checkName("clusterName", h.ClusterName, maxNameLen),
		checkAddr("brokerAddr", h.BrokerAddr),
	} {
		if err != nil {
			return nil, nil, err
		}
	}
	if h.BrokerID < 0 {
		return nil, nil, fmt.Errorf("brokerId is negative: %d", h.BrokerID)
	}
	if h.HAServerAddr != "" {
		if err := checkAddr("haServerAddr", h.HAServerAddr); err != nil {
			return nil, nil, err
		}
	}
	r = &registration{BrokerIdentity: h.BrokerIdentity, haAddr: h.HAServerAddr, timeout: brokerTimeout(h.HeartbeatTimeoutMillis)}
	if zone := req.Ext.Value(zoneField); zone != "" {
		if err := checkName("zone", zone, maxNameLen); err != nil {
			return nil, nil, err
		}
		r.zone = zone
	}
	_, r.knowsActing = req.Ext.Get("enableActingMaster")
	r.acting = h.EnableActingMaster
	body, err := registrationBody(h, req)
	if err != nil {
		return nil, nil, err
	}
	r.version, r.listed = body.Topics.DataVersion, len(body.Topics.Topics)
	refused = r.setTopics(body, b)
	if err := r.setFilterServers(body.FilterServers, b); err != nil {
		refused = err
	}
	if err := r.setMappings(body.Topics.MappingInfos); err != nil {
		refused = err
	}
	return r, refused, nil
}

func brokerTimeout(millis int64) time.Duration {
	if millis <= 0 {
		return defaultBrokerTimeout
	}
	return min(time.Duration(min(millis, math.MaxInt64/int64(time.Millisecond)))*time.Millisecond, maxBrokerTimeout)
}

func registrationBody(h *remoting.RegisterBrokerRequest, req *remoting.Command) (*remoting.RegisterBroker, error) {
	if len(req.Body) == 0 {
		return &remoting.RegisterBroker{}, nil
	}
	if req.Version < remoting.Version3_0_11 {
		body := new(remoting.RegisterBroker)
		return body, remoting.DecodeBody(req.Body, &body.Topics)
	}
	return remoting.DecodeRegisterBroker(req.Body, h.Compressed, req.Version)
}

func (r *registration) setTopics(body *remoting.RegisterBroker, b bounds) (refused error) {
	r.topics = make([]topicQueues, 0, len(body.Topics.Topics))
	for _, config := range body.Topics.Topics {
		q := remoting.QueueData{
			BrokerName: r.BrokerName, ReadQueueNums: config.ReadQueueNums, WriteQueueNums: config.WriteQueueNums,
			Perm: config.Perm, TopicSysFlag: config.TopicSysFlag,
		}
		if err := checkQueues(config.TopicName, q, b); err != nil {
			refused = err
			continue
		}
		r.topics = append(r.topics, topicQueues{config.TopicName, q})
	}
	return refused
}

// checkQueues refuses topics that clients would choke on.
func checkQueues(topic string, q remoting.QueueData, b bounds) error {
	if err := checkName("topic", topic, maxTopicLen); err != nil {
		return err
	}
	for _, n := range []int32{q.ReadQueueNums, q.WriteQueueNums} {
		if n < 0 || n > b.queueNums {
			return fmt.Errorf("topic %q has %d queues", topic, n)
		}
	}
	return nil
}

func (r *registration) setFilterServers(addrs []string, b bounds) error {
	if len(addrs) > b.filterServers {
		return fmt.Errorf("%d filter servers", len(addrs))
	}
	for _, addr := range addrs {
		if err := checkAddr("filter server", addr); err != nil {
			return err
		}
	}
	r.filterServers = addrs
	return nil
}

// setMappings takes the queue mappings of static topics, which are passed on.
func (r *registration) setMappings(infos remoting.RawJSON) error {
	if len(infos) == 0 {
		return nil
	}
	var byTopic map[string]json.RawMessage
	if err := javajson.Unmarshal(infos, &byTopic); err != nil {
		return fmt.Errorf("queue mappings: %w", err)
	}
	var err error
	for topic, info := range byTopic {
		var m struct {
			BrokerName string `json:"bname"`
		}
		if json.Unmarshal(info, &m) != nil || m.BrokerName != r.BrokerName {
			err = fmt.Errorf("queue mapping of topic %s is not of this broker", quoteClipped(topic))
			continue
		}
		var compact bytes.Buffer
		if json.Compact(&compact, info) != nil { // never: it was just read
			continue
		}
		if r.mappings == nil {
			r.mappings = make(map[string][]byte, len(byTopic))
		}
		r.mappings[topic] = compact.Bytes()
	}
	return err
}
