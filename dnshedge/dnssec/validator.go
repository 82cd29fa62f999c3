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

// An Exchanger sends a DNS query and returns the response, like *dnshedge.Client. It is identical to the interface
// dnshedge.Exchanger, so that this package need not import package dnshedge.
type Exchanger interface {
	ExchangeContext(ctx context.Context, m *dns.Msg, address string) (r *dns.Msg, rtt time.Duration, err error)
}

// A Validator validates the answers of a forwarder's upstreams. Neither the upstreams nor the network to them need be
// trusted.
//
// It is used between two Clients. The Client that uses the Validator has the cache, and answers from Hosts, Routes and
// special-use names. The Client that the Validator uses sends the queries.
//
//	inner := &dnshedge.Client{Upstreams: upstreams}
//	client := &dnshedge.Client{Exchanger: &dnssec.Validator{Exchanger: inner}, Cache: new(dnshedge.Cache)}
//
// A Validator sends queries with DO and CD. When the answer has arrived, it queries all missing keys in parallel, which
// takes at most one more round trip.
//
// If an answer is bogus, the question is sent again without CD, and then to up to four other upstreams. For that, the
// Exchanger needs a method Addresses(name string) []string, as a Client has, with addresses for its ExchangeContext.
//
// If all answers are bogus, the response is SERVFAIL with an extended error (RFC 8914). The error also names upstreams
// without DNSSEC.
//
// A Validator is safe for concurrent use. Its fields must not be changed after first use.
type Validator struct {
	// Exchanger sends the queries. It must not be nil, and must accept an empty address. It should not answer from a hosts
	// file or for special-use names, because unsigned answers are bogus outside of Trust.Insecure.
	Exchanger Exchanger

	// Trust configures the trust anchors. The zero value validates with the built-in trust anchors of the root. Private
	// domains that do not exist in the public DNS must be in Trust.Insecure.
	Trust Trust

	// MaxBytes limits the estimated memory of cached keys, in bytes. 0 means 4 MiB. Any other value must be at least 64
	// KiB.
	MaxBytes int64

	// Name is the name of the Validator in Stats, for metrics and the debug page. It may be empty.
	Name string

	// Logger receives warnings:
	//
	//   - at most once an hour for each zone, that the zone has bogus answers
	//   - at most once a day, that root keys have no trust anchor
	//   - at most once an hour, that the clock is wrong, because the root's signatures are not valid at its time
	//
	// Questions wait until the log handler returns. If Logger is nil, nothing is logged.
	Logger *slog.Logger

	core core
}

var _ Exchanger = (*Validator)(nil)

const (
	defaultBytes = 4 << 20  // default of Validator.MaxBytes
	minBytes     = 64 << 10 // minimum of Validator.MaxBytes, except 0
)

// A core is the internal state of a Validator, which its first use initializes.
type core struct {
	once sync.Once // initializes the following fields
	err  error     // why the Validator cannot be used, for example an invalid field; nil if it can

	conf      *Validator
	maxBytes  int64
	validator *chain.Validator // nil if validation is off

	counters counters
	avoided  avoidedUpstreams
	ctx      context.Context // canceled by Close
	cancel   context.CancelCauseFunc
	running  sync.WaitGroup // questions, and goroutines for them

	closeMu sync.RWMutex // guards closed
	closed  bool         // set by Close: no further question may begin
}

// counters counts questions and queries of a Validator, for Stats.
type counters struct {
	questions, failures, sentQueries atomic.Int64
	limited                          sync.Map // by name of a limit: number (*atomic.Int64) of questions that reached it
}

// errPanicked is the error of every call of a Validator whose initialization has panicked.
var errPanicked = errors.New("dnssec: Validator panicked when it was first used")

// initOnce returns the internal state of the Validator. The first call initializes it. If that fails, all calls return
// the same error.
func (v *Validator) initOnce() (*core, error) {
	c := &v.core
	c.once.Do(func() {
		c.err = errPanicked // unless applyConfig returns: no answer may pass unvalidated
		c.err = c.applyConfig(v)
	})
	return c, c.err
}

// adjustPolicy changes the validation policy of new Validators. It is nil except in tests.
var adjustPolicy func(*validate.Policy)

// applyConfig initializes the state from the fields of v. The error names the first invalid field.
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
		MaxBytes: c.maxBytes, Policy: validate.Policy{AllowSHA1: v.Trust.AllowSHA1, RequireAllAlgorithms: v.Trust.RequireAllAlgorithms},
		ReportBogus:  func(*chain.Zone, netip.AddrPort, string) { c.validator.Counts.Rejected.Add(1) }, // a questionBudget knows the upstreams that it has asked
		DropReferral: func(*chain.Zone) {},                                                             // there are no referrals
		IsLocalError: localerror.IsLocal,
		Logger:       v.Logger,
		LogSource:    "dnssec",
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

// Validate checks the fields of the Validator, and calls the Exchanger's method Validate() error if there is one. The
// error names an invalid field, or is the Exchanger's error. Validate sends no query.
func (v *Validator) Validate() error {
	if _, err := v.initOnce(); err != nil {
		return err
	}
	if e, ok := v.Exchanger.(interface{ Validate() error }); ok {
		return e.Validate()
	}
	return nil
}

// Close ends all questions with net.ErrClosed and waits for all goroutines. It does not close the Exchanger.
// ExchangeContext returns net.ErrClosed after Close. Close always returns nil.
func (v *Validator) Close() error {
	c, err := v.initOnce()
	c.closeMu.Lock()
	c.closed = true
	c.closeMu.Unlock()
	c.cancel(net.ErrClosed)
	if err == nil {
		c.running.Wait()
	}
	return nil
}

// beginQuestion registers a running question, so that Close waits for it. If it returns true, the caller must call
// c.running.Done when the question ends. It returns false if the Validator is closed.
func (c *core) beginQuestion() bool {
	c.closeMu.RLock()
	defer c.closeMu.RUnlock()
	if !c.closed {
		c.running.Add(1)
	}
	return !c.closed
}

// NothingBelow reports whether an NXDOMAIN response with AD for a name shows that no names exist below it (RFC 8020). A
// Client that uses the Validator calls it, and then sends no queries for these names.
//
// It is true if validation is on, the name is valid, and there is no trust anchor or negative trust anchor at or below
// the name.
func (v *Validator) NothingBelow(name string) bool {
	c, err := v.initOnce()
	name, ok := dnsname.CanonicalName(name)
	return err == nil && ok && c.validator != nil && !c.validator.HasAnchorWithin(name)
}

// Unwrap returns the Exchanger to which the Validator sends its queries. A Client uses it to find out whether that
// Exchanger uses the DNS servers of the system. If so, the Client clears its own cache when these servers change.
func (v *Validator) Unwrap() any { return v.Exchanger }

// Identity returns a string that identifies the Exchanger and Trust. Validators with equal strings give equal answers.
// Client.Import checks this string, so that it accepts cached answers only from an equal configuration.
//
// The string is empty if the Exchanger has no method Identity() string, or if that method returns "".
func (v *Validator) Identity() (identity string) {
	if e, ok := v.Exchanger.(interface{ Identity() string }); ok {
		usercode.RunGuarded(func() { identity = e.Identity() })
	}
	if identity == "" {
		return ""
	}
	t := v.Trust
	return fmt.Sprintf("%T %s %s", v.Exchanger, identity, chain.TrustFingerprint(t.Anchors, t.Insecure, t.AllowSHA1, t.RequireAllAlgorithms, t.Report, t.Off))
}

// Stats returns the statistics of the Validator. They have the same type as those of a recursor.Resolver, so that
// metrics and the debug page can show both.
//
// Wire is the number of messages to the Exchanger, and Zones the number of zones with cached keys. Other fields about
// servers are zero. If the Validator's fields are invalid, only Name is set.
func (v *Validator) Stats() observe.RecursorStats {
	c, err := v.initOnce()
	if err != nil {
		return observe.RecursorStats{Name: v.Name}
	}
	s := observe.RecursorStats{
		Name: v.Name, MaxBytes: c.maxBytes, Questions: c.counters.questions.Load(), Failures: c.counters.failures.Load(), Wire: c.counters.sentQueries.Load(),
		Limited: make(map[string]int64),
	}
	c.counters.limited.Range(func(limit, n any) bool {
		s.Limited[limit.(string)] = n.(*atomic.Int64).Load()
		return true
	})
	if c.validator != nil {
		c.validator.FillStats(&s)
		s.Zones = c.validator.CountZones()
	}
	return s
}

// countLimitReached counts, for Stats, a question that reached a limit. limit is the name of a field of recursor.Limits.
func (c *core) countLimitReached(limit string) {
	n, ok := c.counters.limited.Load(limit)
	if !ok {
		n, _ = c.counters.limited.LoadOrStore(limit, new(atomic.Int64))
	}
	n.(*atomic.Int64).Add(1)
}
