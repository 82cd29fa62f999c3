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

// An Exchanger answers questions, like *dnshedge.Client. It equals the interface dnshedge.Exchanger, so that this
// package need not import that one.
type Exchanger interface {
	ExchangeContext(ctx context.Context, m *dns.Msg, address string) (r *dns.Msg, rtt time.Duration, err error)
}

// A Validator validates the answers of a forwarder's upstreams. Neither the upstreams nor the network to them need be
// trusted. It is used between two Clients. The outer Client has the cache, and answers from Hosts, Routes and
// special-use names.
//
//	inner := &dnshedge.Client{Upstreams: upstreams}
//	client := &dnshedge.Client{Exchanger: &dnssec.Validator{Exchanger: inner}, Cache: new(dnshedge.Cache)}
//
// A Validator sends queries with DO and CD. When the answer has arrived, it queries all missing keys in parallel, which
// takes at most one more round trip.
//
// A bogus answer is queried again without CD, and then at up to four other upstreams. For that, the Exchanger needs a
// method Addresses(name string) []string, as a Client has, with addresses for its ExchangeContext. If all answers are
// bogus, the response is SERVFAIL with an extended error (RFC 8914). The error also names upstreams without DNSSEC.
//
// A Validator is safe for concurrent use. Its fields must not be changed after first use.
type Validator struct {
	// Exchanger sends the queries. It must not be nil, and must accept an empty address. It should not answer from a hosts
	// file or for special-use names, because unsigned answers are bogus outside of Trust.Insecure.
	Exchanger Exchanger

	// Trust configures the trust anchors. The zero value validates with the built-in trust anchors of the root. Private
	// domains that do not exist in the public DNS must be in Trust.Insecure.
	Trust Trust

	// MaxBytes limits the estimated memory of cached keys, in bytes. 0 means 4 MiB. It must not be less than 64 KiB
	// otherwise.
	MaxBytes int64

	// Name is the name of the Validator in Stats, for metrics and the debug page. It may be empty.
	Name string

	// Logger receives warnings. It warns about a zone with bogus answers once an hour, about root keys without a trust
	// anchor once a day, and about a wrong clock once an hour. The clock is wrong if the root's signatures are not valid
	// at its time.
	//
	// A question waits for the return of the log handler. Nil means no log.
	Logger *slog.Logger

	core core
}

var _ Exchanger = (*Validator)(nil)

const (
	defaultBytes = 4 << 20
	minBytes     = 64 << 10
)

// A core is the state of a Validator.
type core struct {
	once sync.Once // sets the fields below
	err  error     // why the Validator cannot be used

	conf      *Validator
	maxBytes  int64
	validator *chain.Validator // nil: validation is off

	counters counters
	events   chain.EventLog
	unable   unableUpstreams
	ctx      context.Context // ends with Close
	cancel   context.CancelCauseFunc
	running  sync.WaitGroup // questions and their goroutines

	closeMu sync.RWMutex // guards closed
	closed  bool         // no further question may begin
}

// counters count the events of a Validator, for Stats.
type counters struct {
	questions, failures, sentQueries atomic.Int64
	limited                          sync.Map // number (*atomic.Int64) of questions by limit
}

// errPanicked is the error of a Validator whose first use has panicked.
var errPanicked = errors.New("dnssec: Validator panicked when it was first used")

// setUpOnce returns the state, which the first call creates. The error is that of the first call.
func (v *Validator) setUpOnce() (*core, error) {
	c := &v.core
	c.once.Do(func() {
		c.err = errPanicked // unless applyConfig returns: no answer may pass unvalidated
		c.err = c.applyConfig(v)
	})
	return c, c.err
}

// adjustPolicy changes the policy of Validators in tests. Nil: no change.
var adjustPolicy func(*validate.Policy)

// applyConfig checks the Validator's fields and initializes the state.
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
		ReportBogus:  func(*chain.Zone, netip.AddrPort, string) { c.validator.Counts.Rejected.Add(1) }, // a questionBudget knows the upstreams that it has asked
		DropReferral: func(*chain.Zone) {},                                                             // there are no referrals
		IsLocalError: localerror.IsLocal,
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

// Validate checks the fields. The error names an invalid field, or is that of the Exchanger's Validate method. Validate
// sends no query.
func (v *Validator) Validate() error {
	if _, err := v.setUpOnce(); err != nil {
		return err
	}
	if e, ok := v.Exchanger.(interface{ Validate() error }); ok {
		return e.Validate()
	}
	return nil
}

// Close ends all questions with net.ErrClosed and waits for all goroutines. It does not close the Exchanger. Later
// calls of ExchangeContext fail. Close returns nil.
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

// beginQuestion reports whether a question may begin. If so, the caller must call running.Done.
func (c *core) beginQuestion() bool {
	c.closeMu.RLock()
	defer c.closeMu.RUnlock()
	if !c.closed {
		c.running.Add(1)
	}
	return !c.closed
}

// NothingBelow reports whether an NXDOMAIN response with AD for a name shows that no names exist below it (RFC 8020).
// That is so if validation is on and there is no trust anchor or negative trust anchor at or below the name. The outer
// Client then does not ask for these names.
func (v *Validator) NothingBelow(name string) bool {
	c, err := v.setUpOnce()
	name, ok := dnsname.ParseCanonical(name)
	return err == nil && ok && c.validator != nil && !c.validator.HasAnchorWithin(name)
}

// Unwrap returns the Exchanger. The outer Client uses it to clear its cache when the Exchanger uses the system's DNS
// servers and these change.
func (v *Validator) Unwrap() any { return v.Exchanger }

// Identity returns a string that identifies the Exchanger and Trust. Validators with equal strings give equal answers,
// which Client.Import relies on. The string is empty if the Exchanger has no method Identity() string, or if that
// returns "".
func (v *Validator) Identity() (identity string) {
	if e, ok := v.Exchanger.(interface{ Identity() string }); ok {
		usercode.RunGuarded(func() { identity = e.Identity() })
	}
	if identity == "" {
		return ""
	}
	t := v.Trust
	return fmt.Sprintf("%T %s %s", v.Exchanger, identity, chain.IdentifyTrust(t.Anchors, t.Insecure, t.AllowSHA1, t.Report, t.Off))
}

// Stats returns the statistics of the Validator in the form of a recursor.Resolver, so that metrics and the debug page
// can show both. Wire is the number of messages to the Exchanger, and Zones the number of zones with cached keys. Other
// fields about servers are zero. If the Validator's fields are invalid, only Name is set.
func (v *Validator) Stats() observe.RecursorStats {
	c, err := v.setUpOnce()
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
		c.events.FillStats(&s)
		s.Zones = c.validator.CountZones()
	}
	return s
}

// countLimit counts a question that reached a limit.
func (c *core) countLimit(limit string) {
	n, ok := c.counters.limited.Load(limit)
	if !ok {
		n, _ = c.counters.limited.LoadOrStore(limit, new(atomic.Int64))
	}
	n.(*atomic.Int64).Add(1)
}
