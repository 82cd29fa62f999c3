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

// reading returns a Book that has a config with two attempts, a client whose resolver it reads, and what was told.
func reading(t *testing.T, opts ...grpc.DialOption) (book *serviceconfig.Book, cc *grpc.ClientConn, found *manual.Resolver, told func() []error) {
	book = new(serviceconfig.Book)
	book.Set(parse(t, policy(`"maxAttempts": 2`)), "a test")
	var all []error
	reader := &serviceconfig.Reader{Book: book, Tell: func(target string, c *serviceconfig.Config, err error) {
		assert.Equal(t, shop, target)
		assert.Equal(t, err == nil, c != nil)
		all = append(all, err)
	}}
	found = manual.NewBuilderWithScheme("found")
	found.InitialState(resolver.State{})
	cc, err := grpc.NewClient("found:shop", append(opts, grpc.WithResolvers(reader.Wrap(found)), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cc.Close()) })
	cc.Connect()
	return book, cc, found, func() []error { return all }
}

const shop = "found:///shop" // the target of reading

func attempts(l *serviceconfig.Live) int {
	if p := l.Policy("/s/m"); p != nil {
		return p.Attempts
	}
	return 0
}

func TestAConfigOfTheResolverCountsMore(t *testing.T) {
	book, _, found, told := reading(t)
	assert.Equal(t, 2, attempts(book.Of(shop)))

	send := func(text string) error {
		result := found.CC().ParseServiceConfig(text)
		assert.LessOrEqual(t, 2, attempts(book.Of(shop)), "a config that is only parsed changes nothing")
		return found.CC().UpdateState(resolver.State{ServiceConfig: result})
	}
	_ = send(policy(`"maxAttempts": 3`)) // without addresses gRPC complains, and takes it
	assert.Equal(t, 3, attempts(book.Of(shop)))
	assert.Equal(t, 2, attempts(book.Of("found:///other")))
	assert.Equal(t, 2, attempts(book.Of("")))
	assert.Equal(t, "the resolver", book.Of(shop).Source)
	_ = send(policy(`"maxAttempts": 3`))
	require.Len(t, told(), 1, "what does not change is not told")

	assert.Error(t, send(policy(`"maxAttempts": 1`)))
	assert.Equal(t, 3, attempts(book.Of(shop)), "the old one stays")
	require.Len(t, told(), 2)
	assert.EqualError(t, told()[1], "methodConfig[0].hedgingPolicy.maxAttempts: 1 is not an integer above 1")
	assert.Error(t, send(`{"methodConfig": 7}`))
	assert.Equal(t, 3, attempts(book.Of(shop)))

	_ = send(policy(`"maxAttempts": 4, "fieldOfTheFuture": true`))
	assert.Equal(t, 4, attempts(book.Of(shop)))

	unread := parseElsewhere(t).ParseServiceConfig(`{}`)
	_ = found.CC().UpdateState(resolver.State{ServiceConfig: unread})
	assert.Equal(t, 4, attempts(book.Of(shop)), "nothing is known of a config that another connection has parsed")
}

// What is in force here is in force in gRPC, whose timeout says which config that is.
func TestWhatIsNoConfigLeavesTheLastOneInForce(t *testing.T) {
	config := func(attempts int) string {
		return fmt.Sprintf(`{"methodConfig": [{"name": [{}], "timeout": "%ds", "hedgingPolicy": {"maxAttempts": %d}}]}`, attempts, attempts)
	}
	book, cc, found, _ := reading(t, grpc.WithDefaultServiceConfig(config(2)))
	same := func(want int, why string) {
		assert.Equal(t, want, attempts(book.Of(shop)), why)
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

// parseElsewhere returns a resolver's connection that nobody reads.
func parseElsewhere(t testing.TB) resolver.ClientConn {
	r := manual.NewBuilderWithScheme("elsewhere")
	r.InitialState(resolver.State{})
	cc, err := grpc.NewClient("elsewhere:///", grpc.WithResolvers(r), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cc.Close()) })
	cc.Connect()
	return r.CC()
}

// alone is a resolver's connection without a ClientConn.
type alone struct{ resolver.ClientConn }

func (alone) UpdateState(resolver.State) error { return nil }

// A target more than there may be takes the place of one, and not of all.
func TestManyTargetsForgetFew(t *testing.T) {
	book, _, _, _ := reading(t)
	kept := manual.NewBuilderWithScheme("many")
	reader := &serviceconfig.Reader{Book: book, Tell: func(string, *serviceconfig.Config, error) {}}
	name := func(n int) string { return fmt.Sprintf("many:///%d", n) }
	const targets = 4100
	parser := parseElsewhere(t)
	for n := range targets {
		u, err := url.Parse(name(n))
		require.NoError(t, err)
		kept.BuildCallback = func(_ resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) {
			assert.NoError(t, cc.UpdateState(resolver.State{ServiceConfig: cc.ParseServiceConfig(`{}`)}))
		}
		_, err = reader.Wrap(kept).Build(resolver.Target{URL: *u}, alone{parser}, resolver.BuildOptions{})
		require.NoError(t, err)
	}
	remembered := 0
	for n := range targets {
		if attempts(book.Of(name(n))) == 0 {
			remembered++
		}
	}
	assert.Equal(t, 4096, remembered)
	assert.Zero(t, attempts(book.Of(name(targets-1))), "the last one")
}

func TestWhoWantsNoConfigOfTheResolverGetsNone(t *testing.T) {
	book, _, found, told := reading(t, grpc.WithDisableServiceConfig())
	_ = found.CC().UpdateState(resolver.State{ServiceConfig: found.CC().ParseServiceConfig(policy(`"maxAttempts": 3`))})
	assert.Equal(t, 2, attempts(book.Of(shop)))
	assert.Empty(t, told())
}

type authority struct{ *manual.Resolver }

func (authority) OverrideAuthority(resolver.Target) string { return "shop.test" }

func TestAResolverKeepsItsAuthority(t *testing.T) {
	reader := &serviceconfig.Reader{Book: new(serviceconfig.Book)}
	found := manual.NewBuilderWithScheme("found")
	o, ok := reader.Wrap(authority{found}).(resolver.AuthorityOverrider)
	require.True(t, ok)
	assert.Equal(t, "shop.test", o.OverrideAuthority(resolver.Target{}))
	_, ok = reader.Wrap(found).(resolver.AuthorityOverrider)
	assert.False(t, ok)
	assert.Equal(t, "found", reader.Wrap(found).Scheme())
}

// A resolver may send a config again that it had parsed for a connection which is closed or idle now, or long ago.
func TestConfigThatWasParsedEarlierIsAdopted(t *testing.T) {
	book, _, found, _ := reading(t)
	results := []*serviceconf.ParseResult{found.CC().ParseServiceConfig(policy(`"maxAttempts": 3`)), found.CC().ParseServiceConfig(policy(`"maxAttempts": 4`))}
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
		reader := &serviceconfig.Reader{Book: book, Tell: func(string, *serviceconfig.Config, error) {}}
		_, err = reader.Wrap(later).Build(resolver.Target{URL: *u}, alone{}, resolver.BuildOptions{})
		require.NoError(t, err)
		assert.Equal(t, 3+n, attempts(book.Of(u.String())))
	}
	runtime.KeepAlive(results)
}

// What was parsed is forgotten with the result.
func TestParsedConfigsAreNotKept(t *testing.T) {
	_, _, found, _ := reading(t)
	runtime.GC()
	before := serviceconfig.Parsed()
	for range 100 {
		found.CC().ParseServiceConfig(`{}`)
	}
	for range 100 {
		if serviceconfig.Parsed() <= before {
			return
		}
		runtime.GC()
		time.Sleep(time.Millisecond) // cleanups run in a goroutine of the runtime
	}
	t.Errorf("%d configs are kept, and %d were before", serviceconfig.Parsed(), before)
}
