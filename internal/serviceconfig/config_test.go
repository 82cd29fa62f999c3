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
	for text, want := range map[string]string{
		policy(`"maxAttempts": 1`):                                                       "methodConfig[0].hedgingPolicy.maxAttempts: 1 is not an integer above 1",
		policy(`"maxAttempts": 0`):                                                       "methodConfig[0].hedgingPolicy.maxAttempts: 0 is not an integer above 1",
		policy(`"maxAttempts": 2.5`):                                                     "methodConfig[0].hedgingPolicy.maxAttempts: 2.5 is not an integer above 1",
		policy(`"maxAttempts": "nonsense"`):                                              `methodConfig[0].hedgingPolicy.maxAttempts: "nonsense" is not an integer above 1`,
		policy(`"maxAttempts": "3"`):                                                     `methodConfig[0].hedgingPolicy.maxAttempts: "3" is not an integer above 1`,
		policy(`"maxAttempts": 1e999`):                                                   `methodConfig[0].hedgingPolicy.maxAttempts: 1e999 is not an integer above 1`,
		policy(``):                                                                       `methodConfig[0].hedgingPolicy.maxAttempts: it is missing, and is to be an integer above 1`,
		policy(`"maxAttempts": 2, "hedgingDelay": 0.05`):                                 `methodConfig[0].hedgingPolicy.hedgingDelay: 0.05 is not a duration such as "0.05s" that is not negative`,
		policy(`"maxAttempts": 2, "hedgingDelay": "50ms"`):                               `methodConfig[0].hedgingPolicy.hedgingDelay: "50ms" is not a duration such as "0.05s" that is not negative`,
		policy(`"maxAttempts": 2, "hedgingDelay": "-1s"`):                                `methodConfig[0].hedgingPolicy.hedgingDelay: "-1s" is not a duration such as "0.05s" that is not negative`,
		policy(`"maxAttempts": 2, "hedgingDelay": "s"`):                                  `methodConfig[0].hedgingPolicy.hedgingDelay: "s" is not a duration such as "0.05s" that is not negative`,
		policy(`"maxAttempts": 2, "nonFatalStatusCodes": "ABORTED"`):                     `methodConfig[0].hedgingPolicy.nonFatalStatusCodes: "ABORTED" is not an array`,
		policy(`"maxAttempts": 2, "nonFatalStatusCodes": ["ABORTED", "NOPE"]`):           `methodConfig[0].hedgingPolicy.nonFatalStatusCodes[1]: "NOPE" is not the name of a status code that is a failure`,
		policy(`"maxAttempts": 2, "nonFatalStatusCodes": ["OK"]`):                        `methodConfig[0].hedgingPolicy.nonFatalStatusCodes[0]: "OK" is not the name of a status code that is a failure`,
		policy(`"maxAttempts": 2, "nonFatalStatusCodes": [17]`):                          `methodConfig[0].hedgingPolicy.nonFatalStatusCodes[0]: 17 is not the name of a status code that is a failure`,
		policy(`"maxAttempts": 2, "nonFatalStatusCodes": [null]`):                        `methodConfig[0].hedgingPolicy.nonFatalStatusCodes[0]: null is not the name of a status code that is a failure`,
		policy(`"maxAttempts": 2, "maxAttempts": 3`):                                     `methodConfig[0].hedgingPolicy.maxAttempts is given twice`,
		policy(`"maxAttempts": 2, "MaxAttempts": 3`):                                     `methodConfig[0].hedgingPolicy.MaxAttempts is given twice`,
		`{"methodConfig": [{}, {"hedgingPolicy": []}]}`:                                  `methodConfig[1].hedgingPolicy: [] is not an object`,
		`{"methodConfig": [7]}`:                                                          `methodConfig[0]: 7 is not an object`,
		`{"methodConfig": {}}`:                                                           `methodConfig: {} is not an array`,
		`{"methodConfig": [{"name": [{"method": "m"}]}]}`:                                `methodConfig[0].name[0]: {"method": "m"} is not allowed without a service`,
		`{"methodConfig": [{"name": [{"service": 7}]}]}`:                                 `methodConfig[0].name[0].service: 7 is not a string`,
		`{"methodConfig": [{"name": [{"service": "s"}]}, {"name": [{"service": "s"}]}]}`: `methodConfig[1].name[0]: {"service": "s"} is not a name that no other entry has`,
		`{"methodConfig": [{"name": [{}, {}]}]}`:                                         `methodConfig[0].name[1]: {} is not a name that no other entry has`,
		`{"methodConfig": [{"hedgingPolicy": {"maxAttempts": 2}, "retryPolicy": {}}]}`:   `methodConfig[0].retryPolicy: {} is not allowed beside a hedgingPolicy`,
		`{"retryThrottling": {"maxTokens": 0, "tokenRatio": 1}}`:                         `retryThrottling.maxTokens: 0 is not a number above 0 and not above 1000`,
		`{"retryThrottling": {"maxTokens": 1001, "tokenRatio": 1}}`:                      `retryThrottling.maxTokens: 1001 is not a number above 0 and not above 1000`,
		`{"retryThrottling": {"maxTokens": 10}}`:                                         `retryThrottling.tokenRatio: it is missing, and is to be a number of at least 0.001`,
		`{"retryThrottling": {"maxTokens": 10, "tokenRatio": 0.0009}}`:                   `retryThrottling.tokenRatio: 0.0009 is not a number of at least 0.001`,
		`{"retryThrottling": 3}`:                                                         `retryThrottling: 3 is not an object`,
		`[]`:                                                                             `it is no JSON object`,
		`{`:                                                                              `it is no JSON: unexpected end of JSON input`,
		``:                                                                               `it is no JSON: unexpected end of JSON input`,
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
	} {
		_, err := serviceconfig.Parse(text)
		assert.Error(t, err, text)
	}
}

func TestFieldsThatAreNotKnownAreNamed(t *testing.T) {
	c := parse(t, policy(`"maxAttempts": 2, "hedgeDelay": "1s", "nonFatalStatusCodes": []`))
	assert.Equal(t, []string{"methodConfig[0].hedgingPolicy.hedgeDelay"}, c.Unknown)
}

func TestThrottlingIsReadToTheThousandth(t *testing.T) {
	for text, want := range map[string]serviceconfig.Throttling{
		`{"maxTokens": 10, "tokenRatio": 0.1}`:     {Max: 10_000, Ratio: 100},
		`{"maxTokens": 1000, "tokenRatio": 0.001}`: {Max: 1_000_000, Ratio: 1},
		`{"maxTokens": 0.5, "tokenRatio": 1.2345}`: {Max: 500, Ratio: 1234},
		`{"maxTokens": 1, "tokenRatio": 1e300}`:    {Max: 1000, Ratio: 1_000_000},
		`{"maxTokens": 1.001, "tokenRatio": 1}`:    {Max: 1001, Ratio: 1000},
		`{"maxTokens": 1e-9, "tokenRatio": 1}`:     {Max: 1, Ratio: 1000}, // which is open when it is full
	} {
		assert.Equal(t, want, *parse(t, `{"retryThrottling": `+text+`}`).Throttling, text)
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
