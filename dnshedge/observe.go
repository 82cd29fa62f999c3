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

// clientSettings holds the hedging engine, the observers and the log of a Client, and the switches that turn hedging
// off or into shadow mode. All are fixed after init, except off.
type clientSettings struct {
	engine  *policy.Engine
	watcher *observers.Notifier // nil: there are no observers
	log     *ops.Log
	records logQueue    // of log
	off     atomic.Bool // by SetEnabled or the environment
	shadow  bool        // hedges are only counted
}

// init reads the environment, and makes the engine, its observer and the log. It counts panics of observers and loggers.
func (o *clientSettings) init(conf policy.Config, name string, all []observe.Observer, logger *slog.Logger, panics *atomic.Int64) error {
	for i, one := range all {
		if one == nil {
			return fmt.Errorf("dnshedge: Client.Observers[%d] is nil", i)
		}
	}
	environment := ops.ReadEnvironment()
	o.off.Store(environment.Off != "")
	conf.Shadow = conf.Shadow || environment.Shadow
	o.shadow = conf.Shadow
	o.records.panics = panics
	o.log = ops.NewLog(o.records.newLogger(logger), "dnshedge", protocol, name, panics)
	if !o.log.IsDiscarded() {
		conf.Changed = o.log.LogChange
	}
	o.watcher = observers.NewNotifier(all, o.log.LogObserverPanic)
	conf.Client, conf.Protocol, conf.Notifier = name, protocol, o.watcher
	o.log.LogEnvironment(environment)
	o.engine = policy.New(conf)
	return nil
}
