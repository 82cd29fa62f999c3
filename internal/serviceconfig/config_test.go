package serviceconfig_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/gohedge/hedge/internal/serviceconfig"
)

// policy returns a config in which a method has a hedging policy with the fields.
func policy(fields string) string {
	return `{"methodConfig": [{"name": [{"service": "s"}], "hedgingPolicy": {` + fields + `}}]}`
}

func parse(t *testing.T, text string) *serviceconfig.Config {
	c, err := serviceconfig.Parse(text)
	require.NoError(t, err)
	return c
}

func TestPoliciesAreRead(t *testing.T) {
	for text, want := range map[string]serviceconfig.Policy{
		`"maxAttempts": 2`:                                                      {Attempts: 2},
		`"maxAttempts": 5`:                                                      {Attempts: 5},
		`"maxAttempts": 6`:                                                      {Attempts: 5},
		`"maxAttempts": 1e9`:                                                    {Attempts: 5},
		`"maxAttempts": 3.0, "hedgingDelay": null`:                              {Attempts: 3},
		`"maxAttempts": 3, "hedgingDelay": "0s"`:                                {Attempts: 3, Delayed: true},
		`"maxAttempts": 3, "hedgingDelay": ".5s"`:                               {Attempts: 3, Delayed: true, Delay: 500 * time.Millisecond},
		`"maxAttempts": 3, "hedgingDelay": "0.05s"`:                             {Attempts: 3, Delayed: true, Delay: 50 * time.Millisecond},
		`"MAXATTEMPTS": 3, "HedgingDelay": "2.s"`:                               {Attempts: 3, Delayed: true, Delay: 2 * time.Second},
		`"maxAttempts": 2, "hedgingDelay": "1e-9s"`:                             {},
		`"maxAttempts": 2, "hedgingDelay": "3e11s"`:                             {},
		`"maxAttempts": 2, "hedgingDelay": "3` + strings.Repeat("0", 11) + `s"`: {Attempts: 2, Delayed: true, Delay: math.MaxInt64},
		`"maxAttempts": 2, "hedgingDelay": "0.000000001s"`:                      {Attempts: 2, Delayed: true, Delay: 1},
		`"maxAttempts": 2, "nonFatalStatusCodes": []`:                           {Attempts: 2},
		`"maxAttempts": 2, "nonFatalStatusCodes": null`:                         {Attempts: 2},
	} {
		c, err := serviceconfig.Parse(policy(text))
		if want.Attempts == 0 {
			assert.Error(t, err, text)
			continue
		}
		require.NoError(t, err, text)
		want.Path = "methodConfig[0].hedgingPolicy"
		assert.Equal(t, want, *c.Policy("/s/m"), text)
	}
	p := parse(t, policy(`"maxAttempts": 2, "nonFatalStatusCodes": ["UNAVAILABLE", 10]`)).Policy("/s/m")
	for code := codes.OK; code < 100; code++ {
		assert.Equal(t, code == codes.Unavailable || code == codes.Aborted, p.NonFatal(code), "%v", code)
	}
}

func TestNamesCountAsInGRPC(t *testing.T) {
	entry := func(names, attempts string) string {
		return fmt.Sprintf(`{"name": [%s], "hedgingPolicy": {"maxAttempts": %s}}`, names, attempts)
	}
	c := parse(t, `{"methodConfig": [`+entry(`{}`, "2")+`,`+entry(`{"service": "a.B"}, {"service": "c.D", "method": ""}`, "3")+`,`+
		entry(`{"service": "a.B", "method": "Get"}`, "4")+`, {"name": [{"service": "a.B", "method": "List"}], "waitForReady": true},
		{"name": [{"service": "a.B", "method": "Put"}], "retryPolicy": {"maxAttempts": 2, "initialBackoff": "1s", "maxBackoff": "1s", "backoffMultiplier": 1, "retryableStatusCodes": ["ABORTED"]}},
		null, {"hedgingPolicy": {"maxAttempts": 5}}]}`)
	for method, want := range map[string]int{"/a.B/Get": 4, "/a.B/Other": 3, "/c.D/Get": 3, "/e.F/Get": 2, "": 2, "nonsense": 2, "/a.B/List": 0, "/a.B/Put": 0} {
		got := 0
		if p := c.Policy(method); p != nil {
			got = p.Attempts
		}
		assert.Equal(t, want, got, method)
	}
	assert.True(t, c.Retries("/a.B/Put"))
	assert.False(t, c.Retries("/a.B/Get"))
	assert.Equal(t, 4, c.Policies())

	assert.Nil(t, parse(t, `{}`).Policy("/a.B/Get"))
	assert.Nil(t, (*serviceconfig.Config)(nil).Policy("/a.B/Get"))
}

func TestWhatIsWrongIsNamedWithItsPath(t *testing.T) {
	const retries = `{"maxAttempts": 2, "initialBackoff": "1s", "maxBackoff": "1s", "backoffMultiplier": 1, "retryableStatusCodes": ["ABORTED"]}`
	for text, want := range map[string]string{
		policy(`"maxAttempts": 1`):                                                                  "methodConfig[0].hedgingPolicy.maxAttempts: 1 is not an integer above 1",
		policy(`"maxAttempts": 0`):                                                                  "methodConfig[0].hedgingPolicy.maxAttempts: 0 is not an integer above 1",
		policy(`"maxAttempts": 2.5`):                                                                "methodConfig[0].hedgingPolicy.maxAttempts: 2.5 is not an integer above 1",
		policy(`"maxAttempts": "nonsense"`):                                                         `methodConfig[0].hedgingPolicy.maxAttempts: "nonsense" is not an integer above 1`,
		policy(`"maxAttempts": "3"`):                                                                `methodConfig[0].hedgingPolicy.maxAttempts: "3" is not an integer above 1`,
		policy(`"maxAttempts": 1e999`):                                                              `methodConfig[0].hedgingPolicy.maxAttempts: 1e999 is not an integer above 1`,
		policy(``):                                                                                  `methodConfig[0].hedgingPolicy.maxAttempts: it is missing, and is to be an integer above 1`,
		policy(`"maxAttempts": 2, "hedgingDelay": 0.05`):                                            `methodConfig[0].hedgingPolicy.hedgingDelay: 0.05 is not a duration such as "0.05s" that is not negative`,
		policy(`"maxAttempts": 2, "hedgingDelay": "50ms"`):                                          `methodConfig[0].hedgingPolicy.hedgingDelay: "50ms" is not a duration such as "0.05s" that is not negative`,
		policy(`"maxAttempts": 2, "hedgingDelay": "-1s"`):                                           `methodConfig[0].hedgingPolicy.hedgingDelay: "-1s" is not a duration such as "0.05s" that is not negative`,
		policy(`"maxAttempts": 2, "hedgingDelay": "s"`):                                             `methodConfig[0].hedgingPolicy.hedgingDelay: "s" is not a duration such as "0.05s" that is not negative`,
		policy(`"maxAttempts": 2, "nonFatalStatusCodes": "ABORTED"`):                                `methodConfig[0].hedgingPolicy.nonFatalStatusCodes: "ABORTED" is not an array`,
		policy(`"maxAttempts": 2, "nonFatalStatusCodes": ["ABORTED", "NOPE"]`):                      `methodConfig[0].hedgingPolicy.nonFatalStatusCodes[1]: "NOPE" is not the name of a status code that is a failure`,
		policy(`"maxAttempts": 2, "nonFatalStatusCodes": ["OK"]`):                                   `methodConfig[0].hedgingPolicy.nonFatalStatusCodes[0]: "OK" is not the name of a status code that is a failure`,
		policy(`"maxAttempts": 2, "nonFatalStatusCodes": [17]`):                                     `methodConfig[0].hedgingPolicy.nonFatalStatusCodes[0]: 17 is not the name of a status code that is a failure`,
		policy(`"maxAttempts": 2, "nonFatalStatusCodes": [null]`):                                   `methodConfig[0].hedgingPolicy.nonFatalStatusCodes[0]: null is not the name of a status code that is a failure`,
		policy(`"maxAttempts": 2, "maxAttempts": 3`):                                                `methodConfig[0].hedgingPolicy.maxAttempts is given twice`,
		policy(`"maxAttempts": 2, "MaxAttempts": 3`):                                                `methodConfig[0].hedgingPolicy.MaxAttempts is given twice`,
		`{"methodConfig": [{}, {"hedgingPolicy": []}]}`:                                             `methodConfig[1].hedgingPolicy: [] is not an object`,
		`{"methodConfig": [{"hedgingPolicy": {"maxAttempts": 2}, "retryPolicy": ` + retries + `}]}`: `methodConfig[0].retryPolicy: ` + retries + ` is not allowed beside a hedgingPolicy`,
	} {
		_, err := serviceconfig.Parse(text)
		assert.EqualError(t, err, want, text)
	}
}

// What gRPC refuses for reasons of its own is refused here as well, in gRPC's words.
func TestWhatGRPCRefusesIsRefused(t *testing.T) {
	for _, text := range []string{
		`{"methodConfig": [{"name": [{"service": "s"}], "timeout": "soon"}]}`,
		`{"methodConfig": [{"name": [{"service": "s"}], "retryPolicy": {"maxAttempts": 1}}]}`,
		`{"loadBalancingConfig": [{"no_such_policy": {}}]}`,
		`{"loadBalancingPolicy": 7}`,
		`{"methodConfig": [7]}`,
		`{"methodConfig": {}}`,
		`{"methodConfig": [{"name": [{"method": "m"}]}]}`,
		`{"methodConfig": [{"name": [{"service": 7}]}]}`,
		`{"methodConfig": [{"name": [{"service": "s"}]}, {"name": [{"service": "s"}]}]}`,
		`{"methodConfig": [{"name": [{}, {}]}]}`,
		`{"methodConfig": [], "retryThrottling": {"maxTokens": 1001, "tokenRatio": 1}}`,
		`{"methodConfig": [], "retryThrottling": {"maxTokens": 10}}`,
		`{"retryThrottling": 3}`,
		`[]`,
		`{`,
		``,
	} {
		_, err := serviceconfig.Parse(text)
		assert.Error(t, err, text)
	}
}

func TestFieldsThatAreNotKnownAreNamed(t *testing.T) {
	c := parse(t, policy(`"maxAttempts": 2, "hedgeDelay": "1s", "nonFatalStatusCodes": []`))
	assert.Equal(t, []string{"methodConfig[0].hedgingPolicy.hedgeDelay"}, c.Unknown)
}

func TestThrottlingIsRead(t *testing.T) {
	for text, want := range map[string]serviceconfig.Throttling{
		`{"maxTokens": 10, "tokenRatio": 0.1}`:     {Max: 10_000_000, Ratio: 100_000},
		`{"maxTokens": 1000, "tokenRatio": 0.001}`: {Max: 1_000_000_000, Ratio: 1000},
		`{"maxTokens": 10, "tokenRatio": 0.0005}`:  {Max: 10_000_000, Ratio: 500},
		`{"maxTokens": 0.5, "tokenRatio": 1.2345}`: {Max: 500_000, Ratio: 1_234_500},
		`{"maxTokens": 1, "tokenRatio": 1e300}`:    {Max: 1_000_000, Ratio: 1_000_000_000},
		`{"maxTokens": 1e-9, "tokenRatio": 1e-9}`:  {Max: 1, Ratio: 1}, // which is open when it is full
	} {
		assert.Equal(t, want, *parse(t, `{"retryThrottling": `+text+`}`).Throttling, text)
	}
}

// gRPC does not check retryThrottling if there is no methodConfig.
func TestThrottlingThatCannotBeUsedIsIgnored(t *testing.T) {
	for text, want := range map[string]string{
		`{"maxTokens": 0, "tokenRatio": 1}`:     "retryThrottling.maxTokens: 0 is not above 0 and at most 1000",
		`{"maxTokens": -1, "tokenRatio": 1}`:    "retryThrottling.maxTokens: -1 is not above 0 and at most 1000",
		`{"maxTokens": 1000.5, "tokenRatio":1}`: "retryThrottling.maxTokens: 1000.5 is not above 0 and at most 1000",
		`{"tokenRatio": 1}`:                     "retryThrottling.maxTokens: 0 is not above 0 and at most 1000",
		`{"maxTokens": 10}`:                     "retryThrottling.tokenRatio: 0 is not above 0",
		`{"maxTokens": 10, "tokenRatio": -0.1}`: "retryThrottling.tokenRatio: -0.1 is not above 0",
	} {
		c := parse(t, `{"retryThrottling": `+text+`}`)
		assert.Nil(t, c.Throttling, text)
		assert.Equal(t, []string{want}, c.Ignored, text)
	}
}

// Of fields that are given twice, in the same or in another case of letters, gRPC reads the last.
func TestConfigsAreReadAsGRPCReadsThem(t *testing.T) {
	for text, want := range map[string]int{
		`null`: 0,
		` {} `: 0,
		`{"methodConfig": null, "retryThrottling": null}`:                                                                                 0,
		`{"methodConfig": [null, {"name": null, "hedgingPolicy": {"maxAttempts": 3}}]}`:                                                   0,
		`{"METHODCONFIG": [{"NAME": [{"SERVICE": "s"}], "HEDGINGPOLICY": {"maxAttempts": 3}}]}`:                                           3,
		`{"methodConfig": [{"name": [{}], "hedgingPolicy": {"maxAttempts": 4}}], "methodConfig": []}`:                                     0,
		`{"methodConfig": [{"name": [{"service": "t"}], "Name": [{"service": "s"}], "hedgingPolicy": {"maxAttempts": 3}}]}`:               3,
		`{"methodConfig": [{"name": [{"service": "s", "service": "t"}, {"service": "s"}], "hedgingPolicy": {"maxAttempts": 3}}]}`:         3,
		`{"methodConfig": [{"name": [{"service": "s"}], "hedgingPolicy": {"maxAttempts": 3}, "HedgingPolicy": {"maxAttempts": 4}}]}`:      4,
		`{"methodConfig": [{"name": [{"service": "s"}], "hedgingPolicy": {"maxAttempts": 3}, "timeout": "9s", "Timeout": "8s"}]}`:         3,
		`{"loadBalancingPolicy": "x", "loadBalancingPolicy": "round_robin", "methodConfig": [{"name": [{}], "hedgingPolicy": null}, {}]}`: 0,
	} {
		got := 0
		if p := parse(t, text).Policy("/s/m"); p != nil {
			got = p.Attempts
		}
		assert.Equal(t, want, got, text)
	}
}

// A config comes from a resolver, and can be as long as a DNS message: eight times as many fields take about eight times as long.
func TestTimeToReadGrowsWithTheLength(t *testing.T) {
	read := func(fields int) time.Duration {
		text := []byte("{")
		for i := range fields {
			text = fmt.Appendf(text, `"%x": 0, `, i)
		}
		text = append(text, `"x": 0}`...)
		least := time.Hour
		for range 5 {
			began := time.Now()
			parse(t, string(text))
			least = min(least, time.Since(began))
		}
		return least
	}
	assert.Less(t, float64(read(8000))/float64(read(1000)), 30.0)
}
