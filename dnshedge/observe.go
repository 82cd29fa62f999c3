package dnshedge

import (
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/gohedge/hedge/internal/observers"
	"github.com/gohedge/hedge/internal/ops"
	"github.com/gohedge/hedge/internal/policy"
	"github.com/gohedge/hedge/observe"
)

const protocol = "dns" // as in observe.KeyInfo

// clientSettings holds what a Client needs to decide on hedges and to report them: the hedging engine, the observers, the
// log, and whether hedging is on, off, or in shadow mode. After init, only the field off changes.
type clientSettings struct {
	engine  *policy.Engine
	watcher *observers.Notifier // nil if there are no observers
	log     *ops.Log
	records logQueue    // through which log writes
	off     atomic.Bool // hedging is off, by SetEnabled or by the environment
	shadow  bool        // hedges are counted and not sent
}

// init creates the hedging engine, the notifier for userObservers, and the log. The environment variables
// HEDGE_DISABLED and HEDGE_MODE have precedence over conf. logger may be nil. panics counts the panics of observers and
// loggers. init returns an error if an observer is nil.
func (o *clientSettings) init(conf policy.Config, name string, userObservers []observe.Observer, logger *slog.Logger, panics *atomic.Int64) error {
	for i, one := range userObservers {
		if one == nil {
			return fmt.Errorf("dnshedge: Client.Observers[%d] is nil", i)
		}
	}
	environment := ops.ReadEnvironment(false)
	o.off.Store(environment.Off != "")
	conf.Shadow = environment.IsShadow(conf.Shadow)
	o.shadow = conf.Shadow
	o.records.panics = panics
	o.log = ops.NewLog(o.records.newLogger(logger), "dnshedge", protocol, name, panics)
	if !o.log.IsDiscarded() {
		conf.Changed = o.log.LogChange
	}
	o.watcher = observers.NewNotifier(userObservers, o.log.LogObserverPanic)
	conf.Client, conf.Protocol, conf.Notifier = name, protocol, o.watcher
	o.log.LogEnvironment(environment)
	o.engine = policy.New(conf)
	return nil
}
