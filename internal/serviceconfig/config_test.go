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

// configWithPolicy returns a config whose service "s" has a hedging policy with the fields.
func configWithPolicy(fields string) string {
	return `{"methodConfig": [{"name": [{"service": "s"}], "hedgingPolicy": {` + fields + `}}]}`
}

func mustParse(t *testing.T, text string) *serviceconfig.Config {
	c, err := serviceconfig.Parse(text)
	require.NoError(t, err)
	return c
}

func TestParseReadsHedgingPolicy(t *testing.T) {
	for text, want := range map[string]serviceconfig.HedgingPolicy{
		`"maxAttempts": 2`:                                                      {MaxAttempts: 2},
		`"maxAttempts": 5`:                                                      {MaxAttempts: 5},
		`"maxAttempts": 6`:                                                      {MaxAttempts: 5},
		`"maxAttempts": 1e9`:                                                    {MaxAttempts: 5},
		`"maxAttempts": 3.0, "hedgingDelay": null`:                              {MaxAttempts: 3},
		`"maxAttempts": 3, "hedgingDelay": "0s"`:                                {MaxAttempts: 3, HasDelay: true},
		`"maxAttempts": 3, "hedgingDelay": ".5s"`:                               {MaxAttempts: 3, HasDelay: true, Delay: 500 * time.Millisecond},
		`"maxAttempts": 3, "hedgingDelay": "0.05s"`:                             {MaxAttempts: 3, HasDelay: true, Delay: 50 * time.Millisecond},
		`"MAXATTEMPTS": 3, "HedgingDelay": "2.s"`:                               {MaxAttempts: 3, HasDelay: true, Delay: 2 * time.Second},
		`"maxAttempts": 2, "hedgingDelay": "1e-9s"`:                             {},
		`"maxAttempts": 2, "hedgingDelay": "3e11s"`:                             {},
		`"maxAttempts": 2, "hedgingDelay": "3` + strings.Repeat("0", 11) + `s"`: {MaxAttempts: 2, HasDelay: true, Delay: math.MaxInt64},
		`"maxAttempts": 2, "hedgingDelay": "0.000000001s"`:                      {MaxAttempts: 2, HasDelay: true, Delay: 1},
		`"maxAttempts": 2, "nonFatalStatusCodes": []`:                           {MaxAttempts: 2},
		`"maxAttempts": 2, "nonFatalStatusCodes": null`:                         {MaxAttempts: 2},
	} {
		c, err := serviceconfig.Parse(configWithPolicy(text))
		if want.MaxAttempts == 0 {
			assert.Error(t, err, text)
			continue
		}
		require.NoError(t, err, text)
		want.Path = "methodConfig[0].hedgingPolicy"
		assert.Equal(t, want, *c.HedgingPolicy("/s/m"), text)
	}
	p := mustParse(t, configWithPolicy(`"maxAttempts": 2, "nonFatalStatusCodes": ["UNAVAILABLE", 10]`)).HedgingPolicy("/s/m")
	for code := codes.OK; code < 100; code++ {
		assert.Equal(t, code == codes.Unavailable || code == codes.Aborted, p.IsNonFatal(code), "%v", code)
	}
}

func TestHedgingPolicyIsThatOfMostSpecificName(t *testing.T) {
	entry := func(names, attempts string) string {
		return fmt.Sprintf(`{"name": [%s], "hedgingPolicy": {"maxAttempts": %s}}`, names, attempts)
	}
	c := mustParse(t, `{"methodConfig": [`+entry(`{}`, "2")+`,`+entry(`{"service": "a.B"}, {"service": "c.D", "method": ""}`, "3")+`,`+
		entry(`{"service": "a.B", "method": "Get"}`, "4")+`, {"name": [{"service": "a.B", "method": "List"}], "waitForReady": true},
		{"name": [{"service": "a.B", "method": "Put"}], "retryPolicy": {"maxAttempts": 2, "initialBackoff": "1s", "maxBackoff": "1s", "backoffMultiplier": 1, "retryableStatusCodes": ["ABORTED"]}},
		null, {"hedgingPolicy": {"maxAttempts": 5}}]}`)
	for method, want := range map[string]int{"/a.B/Get": 4, "/a.B/Other": 3, "/c.D/Get": 3, "/e.F/Get": 2, "": 2, "nonsense": 2, "/a.B/List": 0, "/a.B/Put": 0} {
		got := 0
		if p := c.HedgingPolicy(method); p != nil {
			got = p.MaxAttempts
		}
		assert.Equal(t, want, got, method)
	}
	assert.True(t, c.HasRetryPolicy("/a.B/Put"))
	assert.False(t, c.HasRetryPolicy("/a.B/Get"))
	assert.Equal(t, 4, c.CountHedgingPolicies())

	assert.Nil(t, mustParse(t, `{}`).HedgingPolicy("/a.B/Get"))
	assert.Nil(t, (*serviceconfig.Config)(nil).HedgingPolicy("/a.B/Get"))
}

func TestParseErrorNamesPathAndValue(t *testing.T) {
	const retries = `{"maxAttempts": 2, "initialBackoff": "1s", "maxBackoff": "1s", "backoffMultiplier": 1, "retryableStatusCodes": ["ABORTED"]}`
	for text, want := range map[string]string{
		configWithPolicy(`"maxAttempts": 1`):                                                        "methodConfig[0].hedgingPolicy.maxAttempts: 1 is not an integer above 1",
		configWithPolicy(`"maxAttempts": 0`):                                                        "methodConfig[0].hedgingPolicy.maxAttempts: 0 is not an integer above 1",
		configWithPolicy(`"maxAttempts": 2.5`):                                                      "methodConfig[0].hedgingPolicy.maxAttempts: 2.5 is not an integer above 1",
		configWithPolicy(`"maxAttempts": "nonsense"`):                                               `methodConfig[0].hedgingPolicy.maxAttempts: "nonsense" is not an integer above 1`,
		configWithPolicy(`"maxAttempts": "3"`):                                                      `methodConfig[0].hedgingPolicy.maxAttempts: "3" is not an integer above 1`,
		configWithPolicy(`"maxAttempts": 1e999`):                                                    `methodConfig[0].hedgingPolicy.maxAttempts: 1e999 is not an integer above 1`,
		configWithPolicy(``):                                                                        `methodConfig[0].hedgingPolicy.maxAttempts: missing; it must be an integer above 1`,
		configWithPolicy(`"maxAttempts": 2, "hedgingDelay": 0.05`):                                  `methodConfig[0].hedgingPolicy.hedgingDelay: 0.05 is not a duration such as "0.05s" that is not negative`,
		configWithPolicy(`"maxAttempts": 2, "hedgingDelay": "50ms"`):                                `methodConfig[0].hedgingPolicy.hedgingDelay: "50ms" is not a duration such as "0.05s" that is not negative`,
		configWithPolicy(`"maxAttempts": 2, "hedgingDelay": "-1s"`):                                 `methodConfig[0].hedgingPolicy.hedgingDelay: "-1s" is not a duration such as "0.05s" that is not negative`,
		configWithPolicy(`"maxAttempts": 2, "hedgingDelay": "s"`):                                   `methodConfig[0].hedgingPolicy.hedgingDelay: "s" is not a duration such as "0.05s" that is not negative`,
		configWithPolicy(`"maxAttempts": 2, "nonFatalStatusCodes": "ABORTED"`):                      `methodConfig[0].hedgingPolicy.nonFatalStatusCodes: "ABORTED" is not an array`,
		configWithPolicy(`"maxAttempts": 2, "nonFatalStatusCodes": ["ABORTED", "NOPE"]`):            `methodConfig[0].hedgingPolicy.nonFatalStatusCodes[1]: "NOPE" is not the name of a status code that is a failure`,
		configWithPolicy(`"maxAttempts": 2, "nonFatalStatusCodes": ["OK"]`):                         `methodConfig[0].hedgingPolicy.nonFatalStatusCodes[0]: "OK" is not the name of a status code that is a failure`,
		configWithPolicy(`"maxAttempts": 2, "nonFatalStatusCodes": [17]`):                           `methodConfig[0].hedgingPolicy.nonFatalStatusCodes[0]: 17 is not the name of a status code that is a failure`,
		configWithPolicy(`"maxAttempts": 2, "nonFatalStatusCodes": [null]`):                         `methodConfig[0].hedgingPolicy.nonFatalStatusCodes[0]: null is not the name of a status code that is a failure`,
		configWithPolicy(`"maxAttempts": 2, "maxAttempts": 3`):                                      `methodConfig[0].hedgingPolicy.maxAttempts is given twice`,
		configWithPolicy(`"maxAttempts": 2, "MaxAttempts": 3`):                                      `methodConfig[0].hedgingPolicy.MaxAttempts is given twice`,
		`{"methodConfig": [{}, {"hedgingPolicy": []}]}`:                                             `methodConfig[1].hedgingPolicy: [] is not an object`,
		`{"methodConfig": [{"hedgingPolicy": {"maxAttempts": 2}, "retryPolicy": ` + retries + `}]}`: `methodConfig[0].retryPolicy: ` + retries + ` is not allowed beside a hedgingPolicy`,
	} {
		_, err := serviceconfig.Parse(text)
		assert.EqualError(t, err, want, text)
	}
}

// The error is that of gRPC.
func TestParseRejectsConfigsThatGRPCRejects(t *testing.T) {
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

func TestParseListsUnknownFields(t *testing.T) {
	c := mustParse(t, configWithPolicy(`"maxAttempts": 2, "hedgeDelay": "1s", "nonFatalStatusCodes": []`))
	assert.Equal(t, []string{"methodConfig[0].hedgingPolicy.hedgeDelay"}, c.UnknownFields)
}

func TestParseReadsRetryThrottling(t *testing.T) {
	for text, want := range map[string]serviceconfig.RetryThrottling{
		`{"maxTokens": 10, "tokenRatio": 0.1}`:     {MaxTokens: 10_000_000, TokenRatio: 100_000},
		`{"maxTokens": 1000, "tokenRatio": 0.001}`: {MaxTokens: 1_000_000_000, TokenRatio: 1000},
		`{"maxTokens": 10, "tokenRatio": 0.0005}`:  {MaxTokens: 10_000_000, TokenRatio: 500},
		`{"maxTokens": 0.5, "tokenRatio": 1.2345}`: {MaxTokens: 500_000, TokenRatio: 1_234_500},
		`{"maxTokens": 1, "tokenRatio": 1e300}`:    {MaxTokens: 1_000_000, TokenRatio: 1_000_000_000},
		`{"maxTokens": 1e-9, "tokenRatio": 1e-9}`:  {MaxTokens: 1, TokenRatio: 1}, // which is open when it is full
	} {
		assert.Equal(t, want, *mustParse(t, `{"retryThrottling": `+text+`}`).Throttling, text)
	}
}

// gRPC does not check retryThrottling if there is no methodConfig.
func TestParseIgnoresInvalidRetryThrottling(t *testing.T) {
	for text, want := range map[string]string{
		`{"maxTokens": 0, "tokenRatio": 1}`:     "retryThrottling.maxTokens: 0 is not above 0 and at most 1000",
		`{"maxTokens": -1, "tokenRatio": 1}`:    "retryThrottling.maxTokens: -1 is not above 0 and at most 1000",
		`{"maxTokens": 1000.5, "tokenRatio":1}`: "retryThrottling.maxTokens: 1000.5 is not above 0 and at most 1000",
		`{"tokenRatio": 1}`:                     "retryThrottling.maxTokens: 0 is not above 0 and at most 1000",
		`{"maxTokens": 10}`:                     "retryThrottling.tokenRatio: 0 is not above 0",
		`{"maxTokens": 10, "tokenRatio": -0.1}`: "retryThrottling.tokenRatio: -0.1 is not above 0",
	} {
		c := mustParse(t, `{"retryThrottling": `+text+`}`)
		assert.Nil(t, c.Throttling, text)
		assert.Equal(t, []string{want}, c.IgnoredValues, text)
	}
}

// gRPC uses the last of duplicate fields, also if their names differ in case.
func TestParseUsesLastOfDuplicateFields(t *testing.T) {
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
		if p := mustParse(t, text).HedgingPolicy("/s/m"); p != nil {
			got = p.MaxAttempts
		}
		assert.Equal(t, want, got, text)
	}
}

// A resolver may send a config as long as a DNS message: eight times as many fields take about eight times as long.
func TestParseTimeIsLinear(t *testing.T) {
	read := func(fields int) time.Duration {
		text := []byte("{")
		for i := range fields {
			text = fmt.Appendf(text, `"%x": 0, `, i)
		}
		text = append(text, `"x": 0}`...)
		least := time.Hour
		for range 15 {
			began := time.Now()
			mustParse(t, string(text))
			least = min(least, time.Since(began))
		}
		return least
	}
	assert.Less(t, float64(read(8000))/float64(read(1000)), 40.0, "64 if the time were quadratic, 8 if it is linear")
}
