package dnssec

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/gohedge/hedge/dnshedge/internal/chain"
	"github.com/gohedge/hedge/dnshedge/internal/dnsname"
	"github.com/gohedge/hedge/dnshedge/internal/localerror"
	"github.com/gohedge/hedge/dnshedge/internal/usercode"
	"github.com/gohedge/hedge/dnshedge/internal/validate"
	"github.com/gohedge/hedge/observe"
)

// An Exchanger answers questions, as a *dnshedge.Client does. It is the interface dnshedge.Exchanger, whose package this one does not need.
type Exchanger interface {
	ExchangeContext(ctx context.Context, m *dns.Msg, address string) (r *dns.Msg, rtt time.Duration, err error)
}

// Validator answers the questions of a forwarder and validates the answers of those whom it asks: resolvers that need not be trusted, nor
// the way to them. It stands between two Clients, of which the upper one has the cache, and what is answered without servers: Hosts,
// Routes, special-use names.
//
//	inner := &dnshedge.Client{Upstreams: upstreams}
//	client := &dnshedge.Client{Exchanger: &dnssec.Validator{Exchanger: inner}, Cache: new(dnshedge.Cache)}
//
// It asks with DO and CD, and when the answer has come for the keys that it takes to prove it and that are not kept, all side by side: a
// round trip more at most. What is bogus is asked again without CD, and then at up to four other
// upstreams, if the Exchanger has a method Addresses(name string) []string that names them for its ExchangeContext, as a Client has. When all is bogus,
// the answer is SERVFAIL with an extended error (RFC 8914) that says why, and names upstreams that know nothing of DNSSEC.
//
// A Validator is safe for concurrent use. Its fields must not be changed after first use.
type Validator struct {
	// Exchanger is asked. It must not be nil, and must accept an empty address. It should answer neither from a file of hosts nor for
	// special-use names: what is not signed is bogus, but for names in Trust.Insecure.
	Exchanger Exchanger

	// Trust is whom signatures are believed. The zero value validates from the root's keys on that are built in. Domains that the Exchanger
	// knows and the public zones deny belong into Trust.Insecure.
	Trust Trust

	// MaxBytes bounds the memory that is taken by what is known of keys, by an estimate. Zero: 4 MiB. It must not be less than 64 KiB.
	MaxBytes int64

	// Name names the Validator in Stats, for metrics and the debug page. Empty: no name.
	Name string

	// Logger is told, as warnings, of a zone whose answers are bogus, once an hour; of keys of the root that no anchor knows, once a
	// day; and of a clock at whose time the root's signatures are not valid, once an hour. A question waits until the handler has
	// returned. Nil: nobody is told.
	Logger *slog.Logger

	core core
}

var _ Exchanger = (*Validator)(nil)

const (
	defaultBytes = 4 << 20
	minBytes     = 64 << 10
)

// core is what a Validator works with.
type core struct {
	once sync.Once // sets the fields below
	err  error     // why the Validator cannot be used

	conf      *Validator
	maxBytes  int64
	validator *chain.Validator // nil: nothing is validated

	counters counters
	events   chain.EventLog
	unable   unableUpstreams
	ctx      context.Context // ends with Close
	cancel   context.CancelCauseFunc
	running  sync.WaitGroup // questions, and goroutines that these have started

	closeMu sync.RWMutex // guards closed
	closed  bool         // no question begins any more
}

// counters are those of Stats that chains do not have.
type counters struct {
	questions, failures, asked atomic.Int64
	limited                    sync.Map // *atomic.Int64 by limit
}

// errPanicked is the error of a Validator whose first caller got a panic.
var errPanicked = errors.New("dnssec: Validator panicked when it was first used")

// setUpOnce makes the Validator ready, once.
func (v *Validator) setUpOnce() (*core, error) {
	c := &v.core
	c.once.Do(func() {
		c.err = errPanicked // unless init returns: nothing may pass that is not validated
		c.err = c.applyConfig(v)
	})
	return c, c.err
}

// adjustPolicy changes the policy of Validators, for tests; nil: nothing does.
var adjustPolicy func(*validate.Policy)

func (c *core) applyConfig(v *Validator) error {
	c.conf = v
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	switch {
	case v.Exchanger == nil:
		return errors.New("dnssec: Validator.Exchanger is nil; want one, as a *dnshedge.Client")
	case v.MaxBytes == 0:
		c.maxBytes = defaultBytes
	case v.MaxBytes < minBytes:
		return fmt.Errorf("dnssec: Validator.MaxBytes is %d; want 0 or at least %d", v.MaxBytes, minBytes)
	default:
		c.maxBytes = v.MaxBytes
	}
	conf := chain.Config{
		MaxBytes: c.maxBytes, Policy: validate.Policy{AllowSHA1: v.Trust.AllowSHA1},
		ReportBogus:  func(*chain.Zone, netip.AddrPort, string) { c.validator.Counts.Rejected.Add(1) }, // a question's bill knows whom it has asked
		DropReferral: func(*chain.Zone) {},                                                             // nobody has referred to a zone
		IsLocalError: localerror.Is,
		Go:           func(f func(context.Context)) { c.running.Go(func() { f(c.ctx) }) },
	}
	if err := conf.ReadTrust("dnssec: Validator.Trust", v.Trust.Anchors, v.Trust.Insecure); err != nil {
		return err
	}
	if adjustPolicy != nil {
		adjustPolicy(&conf.Policy)
	}
	if !v.Trust.Off {
		c.validator = chain.NewValidator(conf)
	}
	return nil
}

// Validate returns an error that names the field if one is out of its limits, or what the Exchanger's own Validate returns. It sends nothing.
func (v *Validator) Validate() error {
	if _, err := v.setUpOnce(); err != nil {
		return err
	}
	if e, ok := v.Exchanger.(interface{ Validate() error }); ok {
		return e.Validate()
	}
	return nil
}

// Close ends all questions with net.ErrClosed and waits until everything has ended. It does not close the Exchanger, and always returns nil.
// Exchanges after Close fail.
func (v *Validator) Close() error {
	c, err := v.setUpOnce()
	c.closeMu.Lock()
	c.closed = true
	c.closeMu.Unlock()
	c.cancel(net.ErrClosed)
	if err == nil {
		c.running.Wait()
	}
	return nil
}

// beginQuestion reports whether a question may begin. If so, it must end with running.Done.
func (c *core) beginQuestion() bool {
	c.closeMu.RLock()
	defer c.closeMu.RUnlock()
	if !c.closed {
		c.running.Add(1)
	}
	return !c.closed
}

// NothingBelow reports whether a name of which a response with AD says that it does not exist has no names below it (RFC 8020): the
// Validator validates, and Trust says nothing of a name below. A Client above it asks for none then.
func (v *Validator) NothingBelow(name string) bool {
	c, err := v.setUpOnce()
	name, ok := dnsname.ParseCanonical(name)
	return err == nil && ok && c.validator != nil && !c.validator.HasAnchorWithin(name)
}

// Unwrap returns the Exchanger. The Cache of a Client above forgets what this one has said when it asks the system's servers and these change.
func (v *Validator) Unwrap() any { return v.Exchanger }

// Identity returns a string that names the Exchanger and Trust: Validators with the same string give the same answers. It is empty
// if the Exchanger has no method Identity() string, or that returns nothing. A Client's Import compares such strings.
func (v *Validator) Identity() (identity string) {
	if e, ok := v.Exchanger.(interface{ Identity() string }); ok {
		usercode.Run(func() { identity = e.Identity() })
	}
	if identity == "" {
		return ""
	}
	t := v.Trust
	return fmt.Sprintf("%T %s %s", v.Exchanger, identity, chain.IdentifyTrust(t.Anchors, t.Insecure, t.AllowSHA1, t.Report, t.Off))
}

// Stats returns what the Validator knows and did, as a recursor.Resolver does, for the debug page and metrics of both. Wire is how many
// questions its Exchanger was asked, and Zones of how many zones something is known; what else is about servers is zero. That of a
// Validator whose fields are invalid has but its Name.
func (v *Validator) Stats() observe.RecursorStats {
	c, err := v.setUpOnce()
	if err != nil {
		return observe.RecursorStats{Name: v.Name}
	}
	s := observe.RecursorStats{
		Name: v.Name, MaxBytes: c.maxBytes, Questions: c.counters.questions.Load(), Failures: c.counters.failures.Load(), Wire: c.counters.asked.Load(),
		Limited: make(map[string]int64),
	}
	c.counters.limited.Range(func(limit, n any) bool {
		s.Limited[limit.(string)] = n.(*atomic.Int64).Load()
		return true
	})
	if c.validator != nil {
		c.validator.Fill(&s)
		c.events.Fill(&s)
		s.Zones = c.validator.CountZones()
	}
	return s
}

// countLimit counts a question that ended at a limit.
func (c *core) countLimit(limit string) {
	n, ok := c.counters.limited.Load(limit)
	if !ok {
		n, _ = c.counters.limited.LoadOrStore(limit, new(atomic.Int64))
	}
	n.(*atomic.Int64).Add(1)
}
