package serviceconfig_test

import (
	"fmt"
	"net/url"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	serviceconf "google.golang.org/grpc/serviceconfig"

	"github.com/gohedge/hedge/internal/serviceconfig"
)

// newResolverClient returns a client behind a ResolverReader, its resolver, its registry, whose default config has two attempts, and a function that
// returns the errors of all reports.
func newResolverClient(t *testing.T, opts ...grpc.DialOption) (registry *serviceconfig.Registry, cc *grpc.ClientConn, found *manual.Resolver, reports func() []error) {
	registry = new(serviceconfig.Registry)
	registry.SetDefault(mustParse(t, configWithPolicy(`"maxAttempts": 2`)), "a test")
	var all []error
	reader := &serviceconfig.ConfigRecorder{Registry: registry, Report: func(target string, c *serviceconfig.Config, err error) {
		assert.Equal(t, shopTarget, target)
		assert.Equal(t, err == nil, c != nil)
		all = append(all, err)
	}}
	found = manual.NewBuilderWithScheme("found")
	found.InitialState(resolver.State{})
	cc, err := grpc.NewClient("found:shop", append(opts, grpc.WithResolvers(reader.WrapBuilder(found)), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cc.Close()) })
	cc.Connect()
	return registry, cc, found, func() []error { return all }
}

// shopTarget is the target of newResolverClient.
const shopTarget = "found:///shop" // the target of reading

func maxAttempts(l *serviceconfig.ActiveConfig) int {
	if p := l.HedgingPolicy("/s/m"); p != nil {
		return p.MaxAttempts
	}
	return 0
}

func TestRegistryPrefersConfigOfResolver(t *testing.T) {
	registry, _, found, reports := newResolverClient(t)
	assert.Equal(t, 2, maxAttempts(registry.ConfigFor(shopTarget)))

	send := func(text string) error {
		result := found.CC().ParseServiceConfig(text)
		assert.LessOrEqual(t, 2, maxAttempts(registry.ConfigFor(shopTarget)), "a config that is only parsed changes nothing")
		return found.CC().UpdateState(resolver.State{ServiceConfig: result})
	}
	_ = send(configWithPolicy(`"maxAttempts": 3`)) // without addresses gRPC complains, and takes it
	assert.Equal(t, 3, maxAttempts(registry.ConfigFor(shopTarget)))
	assert.Equal(t, 2, maxAttempts(registry.ConfigFor("found:///other")))
	assert.Equal(t, 2, maxAttempts(registry.ConfigFor("")))
	assert.Equal(t, "the resolver", registry.ConfigFor(shopTarget).Source)
	_ = send(configWithPolicy(`"maxAttempts": 3`))
	require.Len(t, reports(), 1, "an equal config is not reported")

	assert.Error(t, send(configWithPolicy(`"maxAttempts": 1`)))
	assert.Equal(t, 3, maxAttempts(registry.ConfigFor(shopTarget)), "the old config stays in force")
	require.Len(t, reports(), 2)
	assert.EqualError(t, reports()[1], "methodConfig[0].hedgingPolicy.maxAttempts: 1 is not an integer above 1")
	assert.Error(t, send(`{"methodConfig": 7}`))
	assert.Equal(t, 3, maxAttempts(registry.ConfigFor(shopTarget)))

	_ = send(configWithPolicy(`"maxAttempts": 4, "fieldOfTheFuture": true`))
	assert.Equal(t, 4, maxAttempts(registry.ConfigFor(shopTarget)))

	unread := newUnreadConn(t).ParseServiceConfig(`{}`)
	_ = found.CC().UpdateState(resolver.State{ServiceConfig: unread})
	assert.Equal(t, 4, maxAttempts(registry.ConfigFor(shopTarget)), "nothing is known of a config that another connection has parsed")
}

// The timeout tells which config gRPC uses: it is the same as the config of the registry.
func TestRegistryKeepsConfigIfResolverSendsNone(t *testing.T) {
	config := func(attempts int) string {
		return fmt.Sprintf(`{"methodConfig": [{"name": [{}], "timeout": "%ds", "hedgingPolicy": {"maxAttempts": %d}}]}`, attempts, attempts)
	}
	registry, cc, found, _ := newResolverClient(t, grpc.WithDefaultServiceConfig(config(2)))
	same := func(want int, why string) {
		assert.Equal(t, want, maxAttempts(registry.ConfigFor(shopTarget)), why)
		assert.Equal(t, time.Duration(want)*time.Second, *cc.GetMethodConfig("/s/m").Timeout, "gRPC: %s", why)
	}
	same(2, "the program's, before the resolver has sent any")
	_ = found.CC().UpdateState(resolver.State{ServiceConfig: found.CC().ParseServiceConfig(config(3))})
	same(3, "the resolver's")
	_ = found.CC().UpdateState(resolver.State{})
	same(3, "the resolver's, though it had none later")
	_ = found.CC().UpdateState(resolver.State{ServiceConfig: found.CC().ParseServiceConfig("{")})
	same(3, "the resolver's, though a later one is invalid")
	_ = found.CC().UpdateState(resolver.State{ServiceConfig: new(serviceconf.ParseResult)})
	same(3, "the resolver's, though it sent nothing of gRPC's")
}

// newUnreadConn returns the ClientConn of a resolver without a ResolverReader.
func newUnreadConn(t testing.TB) resolver.ClientConn {
	r := manual.NewBuilderWithScheme("elsewhere")
	r.InitialState(resolver.State{})
	cc, err := grpc.NewClient("elsewhere:///", grpc.WithResolvers(r), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cc.Close()) })
	cc.Connect()
	return r.CC()
}

// parserOnlyConn is the ClientConn of a resolver that parses configs and ignores states.
type parserOnlyConn struct{ resolver.ClientConn }

func (parserOnlyConn) UpdateState(resolver.State) error { return nil }

// A new target replaces one target, and not all.
func TestRegistryEvictsSingleTargetWhenFull(t *testing.T) {
	registry, _, _, _ := newResolverClient(t)
	kept := manual.NewBuilderWithScheme("many")
	reader := &serviceconfig.ConfigRecorder{Registry: registry, Report: func(string, *serviceconfig.Config, error) {}}
	name := func(n int) string { return fmt.Sprintf("many:///%d", n) }
	const targets = 4100
	parser := newUnreadConn(t)
	for n := range targets {
		u, err := url.Parse(name(n))
		require.NoError(t, err)
		kept.BuildCallback = func(_ resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) {
			assert.NoError(t, cc.UpdateState(resolver.State{ServiceConfig: cc.ParseServiceConfig(`{}`)}))
		}
		_, err = reader.WrapBuilder(kept).Build(resolver.Target{URL: *u}, parserOnlyConn{parser}, resolver.BuildOptions{})
		require.NoError(t, err)
	}
	remembered := 0
	for n := range targets {
		if maxAttempts(registry.ConfigFor(name(n))) == 0 {
			remembered++
		}
	}
	assert.Equal(t, 4096, remembered)
	assert.Zero(t, maxAttempts(registry.ConfigFor(name(targets-1))), "the last one")
}

func TestResolverReaderHonoursDisableServiceConfig(t *testing.T) {
	registry, _, found, reports := newResolverClient(t, grpc.WithDisableServiceConfig())
	_ = found.CC().UpdateState(resolver.State{ServiceConfig: found.CC().ParseServiceConfig(configWithPolicy(`"maxAttempts": 3`))})
	assert.Equal(t, 2, maxAttempts(registry.ConfigFor(shopTarget)))
	assert.Empty(t, reports())
}

type authorityResolver struct{ *manual.Resolver }

func (authorityResolver) OverrideAuthority(resolver.Target) string { return "shop.test" }

func TestWrapBuilderKeepsAuthorityOverrider(t *testing.T) {
	reader := &serviceconfig.ConfigRecorder{Registry: new(serviceconfig.Registry)}
	found := manual.NewBuilderWithScheme("found")
	o, ok := reader.WrapBuilder(authorityResolver{found}).(resolver.AuthorityOverrider)
	require.True(t, ok)
	assert.Equal(t, "shop.test", o.OverrideAuthority(resolver.Target{}))
	_, ok = reader.WrapBuilder(found).(resolver.AuthorityOverrider)
	assert.False(t, ok)
	assert.Equal(t, "found", reader.WrapBuilder(found).Scheme())
}

// A resolver may send a config that it had parsed long ago, or for a connection that is closed or idle now.
func TestResolverReaderAdoptsConfigParsedEarlier(t *testing.T) {
	registry, _, found, _ := newResolverClient(t)
	results := []*serviceconf.ParseResult{found.CC().ParseServiceConfig(configWithPolicy(`"maxAttempts": 3`)), found.CC().ParseServiceConfig(configWithPolicy(`"maxAttempts": 4`))}
	for range 1000 {
		results = append(results, found.CC().ParseServiceConfig(`{}`))
	}
	runtime.GC()
	for n, result := range results[:2] {
		later := manual.NewBuilderWithScheme("later")
		later.BuildCallback = func(_ resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) {
			assert.NoError(t, cc.UpdateState(resolver.State{ServiceConfig: result}))
		}
		u, err := url.Parse(fmt.Sprint("later:///", n))
		require.NoError(t, err)
		reader := &serviceconfig.ConfigRecorder{Registry: registry, Report: func(string, *serviceconfig.Config, error) {}}
		_, err = reader.WrapBuilder(later).Build(resolver.Target{URL: *u}, parserOnlyConn{}, resolver.BuildOptions{})
		require.NoError(t, err)
		assert.Equal(t, 3+n, maxAttempts(registry.ConfigFor(u.String())))
	}
	runtime.KeepAlive(results)
}

// A parsed config is dropped with its ParseResult.
func TestParsedConfigsAreGarbageCollected(t *testing.T) {
	_, _, found, _ := newResolverClient(t)
	runtime.GC()
	before := serviceconfig.CountParsedConfigs()
	for range 100 {
		found.CC().ParseServiceConfig(`{}`)
	}
	for range 100 {
		if serviceconfig.CountParsedConfigs() <= before {
			return
		}
		runtime.GC()
		time.Sleep(time.Millisecond) // cleanups run in a goroutine of the runtime
	}
	t.Errorf("%d configs are kept, and %d were before", serviceconfig.CountParsedConfigs(), before)
}
