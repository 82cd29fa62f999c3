package serviceconfig_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/gohedge/hedge/internal/serviceconfig"
)

// FuzzServiceConfig parses any text: gRPC accepts each config that Parse accepts, and A6 allows its policies.
func FuzzServiceConfig(f *testing.F) {
	f.Add(configWithPolicy(`"maxAttempts": 3, "hedgingDelay": "0.05s", "nonFatalStatusCodes": ["UNAVAILABLE", 10]`))
	f.Add(configWithPolicy(`"maxAttempts": "nonsense"`))
	f.Add(configWithPolicy(`"MAXATTEMPTS": 1e99, "hedgingDelay": "315576000000.999999999s"`))
	f.Add(`{"methodConfig": [{"name": [{}, {"service": "a.B", "method": "C"}], "retryPolicy": {}}], "retryThrottling": {"maxTokens": 10, "tokenRatio": 0.1}}`)
	f.Add(`{"methodConfig": [null, {"name": null}], "methodConfig": []}`)
	f.Add(`{"loadBalancingConfig": [{"round_robin": {}}], "methodConfig": []}`)
	f.Fuzz(func(t *testing.T, text string) {
		c, err := serviceconfig.Parse(text)
		if err != nil {
			require.Nil(t, c)
			require.NotEmpty(t, err.Error())
			return
		}
		conn, err := grpc.NewClient("passthrough:///", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultServiceConfig(text))
		require.NoError(t, err)
		require.NoError(t, conn.Close())
		for _, method := range []string{"", "/s/m", "/a.B/C"} {
			if p := c.HedgingPolicy(method); p != nil {
				require.True(t, p.MaxAttempts >= 2 && p.MaxAttempts <= 5)
				require.GreaterOrEqual(t, p.Delay, p.Delay*0)
				require.False(t, p.IsNonFatal(0))
				require.False(t, c.HasRetryPolicy(method))
			}
		}
		if th := c.Throttling; th != nil {
			require.True(t, th.MaxTokens > 0 && th.MaxTokens <= 1_000_000_000 && th.TokenRatio > 0)
		}
	})
}

// FuzzResolverConfig compares a resolver behind a ResolverReader with gRPC alone. Both get the same result for a config without a hedgingPolicy. A
// config with a hedgingPolicy is rejected only by an error that names it.
func FuzzResolverConfig(f *testing.F) {
	for _, text := range []string{
		`{"retryThrottling":{"maxTokens":10,"tokenRatio":0.0005}}`,
		`{"methodConfig":[],"retryThrottling":{"maxTokens":1000,"tokenRatio":1e300}}`,
		`{"methodConfig":[],"retryThrottling":{"maxTokens":1000.0001,"tokenRatio":1}}`,
		`{"retryThrottling":{"maxTokens":-5,"tokenRatio":0}}`,
		`{"retryThrottling":{"maxTokens":"10","tokenRatio":"0.1"}}`,
		`{"retryThrottling":{"maxTokens":1e999,"tokenRatio":1}}`,
		`{"retryThrottling":{"maxTokens":1,"maxTokens":2,"MAXTOKENS":3,"tokenRatio":1}}`,
		`{"retryThrottling":{},"retryThrottling":null}`,
		`{"loadBalancingPolicy":"pick_first","loadBalancingPolicy":"round_robin"}`,
		`{"methodConfig":[{"name":[{}],"timeout":"9s","Timeout":"8s"}]}`,
		`{"methodConfig":[{"name":[{}]}],"METHODCONFIG":[{"name":[{"service":"s"}]}]}`,
		`{"methodConfig":[{"name":[{"service":"s","Service":"t","\u017fervice":"u"}]}]}`,
		`{"methodConfig":[{"name":[{"service":"a"},{"service":"a"}]}]}`,
		`{"methodConfig":[{"name":[{"service":1}],"maxRequestMessageBytes":"1"}]}`,
		`{"methodConfig":[{"name":[null],"waitForReady":null,"maxRequestMessageBytes":9223372036854775807}]}`,
		`{"methodConfig":[{"name":[{}],"maxResponseMessageBytes":1e400}]}`,
		`{"methodConfig":[{"name":[{}],"retryPolicy":{"maxAttempts":2,"initialBackoff":"1s","maxBackoff":"1s","backoffMultiplier":1,"retryableStatusCodes":["ABORTED",14]}}]}`,
		`{"methodConfig":[{"retryPolicy":{}},{"retryPolicy":7}]}`,
		`{"healthCheckConfig":{"serviceName":"x"},"healthCheckConfig":null,"unknown":{"a":[1e999]}}`,
		"null", " \n{\t}\r ", "[]", "{", "", "{} {}", "\ufeff{}", "{\"\xff\":1}", `"{}"`, "0",
		`{"methodConfig":[{"name":[{}],"hedgingPolicy":{"maxAttempts":1}}]}`,
		`{"methodConfig":[{"name":[{}],"hedgingPolicy":null,"HedgingPolicy":{}}]}`,
		`{"methodConfig":[{"name":[{}],"hedgingPolicy":{"maxAttempts":2}}]}`,
	} {
		f.Add(text)
	}
	bare := newUnreadConn(f)
	registry := new(serviceconfig.Registry)
	registry.SetDefault(nil, "a test")
	var read resolver.ClientConn
	found := manual.NewBuilderWithScheme("found")
	found.BuildCallback = func(_ resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) { read = cc }
	reader := &serviceconfig.ConfigRecorder{Registry: registry, Report: func(string, *serviceconfig.Config, error) {}}
	_, err := reader.WrapBuilder(found).Build(resolver.Target{}, parserOnlyConn{bare}, resolver.BuildOptions{})
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, text string) {
		want, got := bare.ParseServiceConfig(text), read.ParseServiceConfig(text)
		_, err := serviceconfig.Parse(text)
		require.Equal(t, got.Err == nil, err == nil, "a config of the program is read as that of a resolver: %v, %v", got.Err, err)
		switch {
		case want.Err != nil:
			require.EqualError(t, got.Err, want.Err.Error())
		case got.Err != nil:
			require.Regexp(t, `^methodConfig\[\d+\]\.(hedgingPolicy|retryPolicy: .* beside a hedgingPolicy$)`, got.Err.Error())
			require.True(t, hasHedgingPolicy(t, text))
		default:
			require.Equal(t, want, got)
			require.NoError(t, read.UpdateState(resolver.State{ServiceConfig: got}))
		}
	})
}

// hasHedgingPolicy reports whether a config that gRPC accepts has a hedgingPolicy in an entry of methodConfig.
func hasHedgingPolicy(t *testing.T, text string) bool {
	var config struct {
		MethodConfig []map[string]json.RawMessage
	}
	require.NoError(t, json.Unmarshal([]byte(text), &config))
	for _, entry := range config.MethodConfig {
		for name, policy := range entry {
			if strings.EqualFold(name, "hedgingPolicy") && string(policy) != "null" {
				return true
			}
		}
	}
	return false
}
