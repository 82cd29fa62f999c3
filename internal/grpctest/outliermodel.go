package grpctest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/serviceconfig"
	"google.golang.org/grpc/status"
)

// OutlierDetectionConfig returns a service config that selects outlier detection with the given child policy directly
// below hedge_elsewhere. The argument more is the text of further fields, such as `,"methodConfig":[]`.
func OutlierDetectionConfig(child, more string) string {
	return fmt.Sprintf(`{"loadBalancingConfig":[{"hedge_elsewhere":{"childPolicy":[{"outlier_detection_experimental":{"childPolicy":[{%q:{}}]}}]}}]%s}`, child, more)
}

// RegisterOutlierModel registers a model of gRPC's outlier detection as the load balancing policy
// outlier_detection_experimental. It counts ends of calls as gRPC's policy does, and ejects nothing. It must be called
// by an init function of a program that does not import package xds.
func RegisterOutlierModel() { balancer.Register(outlierBuilder{}) }

// An OutlierCount is one result of a call that outlier detection has counted. It is a failure if Code is not OK.
type OutlierCount struct {
	Address  string      // address of the backend
	Metadata metadata.MD // outgoing metadata of the call
	Code     codes.Code
}

// An OutlierCounts collects results that the model counts. The zero value is ready to use. It is safe for concurrent
// use.
type OutlierCounts struct {
	mu  sync.Mutex
	all []OutlierCount
}

// All returns the results so far.
func (c *OutlierCounts) All() []OutlierCount {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.all)
}

// Failures returns the number of failures by address of the backend.
func (c *OutlierCounts) Failures() map[string]int {
	failures := make(map[string]int)
	for _, n := range c.All() {
		if n.Code != codes.OK {
			failures[n.Address]++
		}
	}
	return failures
}

// Successes returns the number of successes by address of the backend.
func (c *OutlierCounts) Successes() map[string]int {
	successes := make(map[string]int)
	for _, n := range c.All() {
		if n.Code == codes.OK {
			successes[n.Address]++
		}
	}
	return successes
}

// An outlierCountsKey is the context key of an *OutlierCounts.
type outlierCountsKey struct{}

// NewContext returns a copy of ctx. The results of calls with that context are added to c.
func (c *OutlierCounts) NewContext(ctx context.Context) context.Context {
	return context.WithValue(ctx, outlierCountsKey{}, c)
}

// An outlierBuilder creates balancers of the model.
type outlierBuilder struct{}

// An outlierConfig is the configuration of the model: its child policy.
type outlierConfig struct {
	serviceconfig.LoadBalancingConfig
	child  balancer.Builder
	config serviceconfig.LoadBalancingConfig
}

// Name implements [balancer.Builder].
func (outlierBuilder) Name() string { return "outlier_detection_experimental" }

// ParseConfig implements [balancer.ConfigParser].
func (outlierBuilder) ParseConfig(text json.RawMessage) (serviceconfig.LoadBalancingConfig, error) {
	var fields struct{ ChildPolicy []map[string]json.RawMessage }
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, err
	}
	for _, entry := range fields.ChildPolicy {
		for name, text := range entry {
			c := &outlierConfig{child: balancer.Get(name)}
			if c.child == nil {
				continue
			}
			if p, ok := c.child.(balancer.ConfigParser); ok {
				var err error
				if c.config, err = p.ParseConfig(text); err != nil {
					return nil, err
				}
			}
			return c, nil
		}
	}
	return nil, fmt.Errorf("no registered policy in %s", text)
}

// Build implements [balancer.Builder].
func (outlierBuilder) Build(cc balancer.ClientConn, opts balancer.BuildOptions) balancer.Balancer {
	return &outlierModel{ClientConn: cc, opts: opts}
}

// An outlierModel is a balancer of the model, and the [balancer.ClientConn] of its child. The child policy of a
// connection must not change.
type outlierModel struct {
	balancer.ClientConn
	opts  balancer.BuildOptions
	child balancer.Balancer // nil before the first configuration
}

// UpdateClientConnState implements [balancer.Balancer].
func (m *outlierModel) UpdateClientConnState(s balancer.ClientConnState) error {
	c := s.BalancerConfig.(*outlierConfig)
	if m.child == nil {
		m.child = c.child.Build(m, m.opts)
	}
	s.BalancerConfig = c.config
	return m.child.UpdateClientConnState(s)
}

// ResolverError implements [balancer.Balancer].
func (m *outlierModel) ResolverError(err error) {
	if m.child != nil {
		m.child.ResolverError(err)
	}
}

// UpdateSubConnState implements [balancer.Balancer]. It is not called.
func (m *outlierModel) UpdateSubConnState(balancer.SubConn, balancer.SubConnState) {}

// ExitIdle implements [balancer.Balancer].
func (m *outlierModel) ExitIdle() {
	if m.child != nil {
		m.child.ExitIdle()
	}
}

// Close implements [balancer.Balancer].
func (m *outlierModel) Close() {
	if m.child != nil {
		m.child.Close()
	}
}

// An outlierConn is a connection of the child, with its address.
type outlierConn struct {
	balancer.SubConn
	address string
}

// NewSubConn implements [balancer.ClientConn].
func (m *outlierModel) NewSubConn(addrs []resolver.Address, opts balancer.NewSubConnOptions) (balancer.SubConn, error) {
	sc, err := m.ClientConn.NewSubConn(addrs, opts) //lint:ignore SA1019 there is no other
	if err != nil {
		return nil, err
	}
	return &outlierConn{sc, addrs[0].Addr}, nil
}

// UpdateState implements [balancer.ClientConn].
func (m *outlierModel) UpdateState(s balancer.State) {
	s.Picker = outlierPicker{s.Picker}
	m.ClientConn.UpdateState(s)
}

// An outlierPicker counts the results of the calls for which the picker of the child selects a backend.
type outlierPicker struct{ balancer.Picker }

// Pick implements [balancer.Picker].
func (p outlierPicker) Pick(info balancer.PickInfo) (balancer.PickResult, error) {
	r, err := p.Picker.Pick(info)
	if err != nil {
		return balancer.PickResult{}, err
	}
	sc, done := r.SubConn.(*outlierConn), r.Done
	counts, _ := info.Ctx.Value(outlierCountsKey{}).(*OutlierCounts)
	md, _ := metadata.FromOutgoingContext(info.Ctx)
	r.SubConn, r.Done = sc.SubConn, func(d balancer.DoneInfo) {
		if counts != nil {
			counts.mu.Lock()
			counts.all = append(counts.all, OutlierCount{sc.address, md, status.Code(d.Err)})
			counts.mu.Unlock()
		}
		if done != nil {
			done(d)
		}
	}
	return r, nil
}
