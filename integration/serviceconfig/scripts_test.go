// Package serviceconfig compares what StrictServiceConfig does with what grpc-java does, by scripts that either plays against
// the same server.
package serviceconfig

import (
	"encoding/json"
	"strings"

	"google.golang.org/grpc/codes"
)

// A script is calls over one channel with a service config, and what the server does with their attempts.
type script struct {
	Name   string          `json:"name"`
	Config json.RawMessage `json:"config"`
	Calls  []call          `json:"calls"`
}

type call struct {
	Method  string `json:"method"`
	Stream  bool   `json:"stream"`  // of the server
	Timeout int    `json:"timeout"` // ms

	plays []play
}

// A play is what becomes of an attempt: after so many ms it ends with a code.
type play struct {
	ms       int
	code     codes.Code
	pushback string // "": none
}

const (
	never = 60_000 // ms
	write = "/shop.Orders/Write"
)

// policy is a config in which a service has a policy.
func policy(fields string) json.RawMessage {
	return json.RawMessage(`{"methodConfig": [{"name": [{"service": "shop.Orders"}], "hedgingPolicy": {` + fields + `}}]}`)
}

func throttled(fields, throttling string) json.RawMessage {
	return json.RawMessage(strings.TrimSuffix(string(policy(fields)), "}") + `, "retryThrottling": {` + throttling + `}}`)
}

func plays(all ...play) []call { return []call{{Method: write, Timeout: 2000, plays: all}} }

// within is calls with a shorter deadline.
func within(ms int, all ...play) []call { return []call{{Method: write, Timeout: ms, plays: all}} }

func streams(all ...play) []call {
	return []call{{Method: write, Stream: true, Timeout: 2000, plays: all}}
}

// times repeats a call.
func times(n int, c []call) (all []call) {
	for range n {
		all = append(all, c...)
	}
	return all
}

func ok(ms int) play                      { return play{ms: ms} }
func fails(ms int, c codes.Code) play     { return play{ms: ms, code: c} }
func pushes(ms int, pushback string) play { return play{ms, codes.Unavailable, pushback} }

const (
	three = `"maxAttempts": 3, "hedgingDelay": "0.15s", "nonFatalStatusCodes": ["UNAVAILABLE"]`
	two   = `"maxAttempts": 2, "hedgingDelay": "0.15s", "nonFatalStatusCodes": ["UNAVAILABLE"]`
)

var scripts = []script{
	{"each delay sends the next", policy(three), plays(ok(never), ok(never), ok(50))},
	{"the first answer wins", policy(three), plays(ok(1000), ok(60))},
	{"maxAttempts are sent, and no more", policy(three), plays(ok(700), ok(never))},
	{"an early answer is alone", policy(three), plays(ok(90))},
	{"five attempts", policy(`"maxAttempts": 5, "hedgingDelay": "0.1s"`), plays(ok(never), ok(never), ok(never), ok(never), ok(50))},
	{"seven attempts are five", policy(`"maxAttempts": 7, "hedgingDelay": "0.1s"`), plays(ok(900), ok(never))},
	{"all at once", policy(`"maxAttempts": 4, "hedgingDelay": "0s"`), plays(ok(200))},
	{"a fatal failure of the first", policy(three), plays(fails(200, codes.Internal), ok(never))},
	{"an early fatal failure", policy(three), plays(fails(60, codes.NotFound))},
	{"a fatal failure of a hedge", policy(three), plays(ok(400), fails(60, codes.NotFound))},
	{"all codes are fatal if none is named", policy(`"maxAttempts": 3, "hedgingDelay": "0.15s"`), plays(fails(60, codes.Unavailable))},
	{"a non-fatal failure of the first", policy(three), plays(fails(50, codes.Unavailable), ok(50))},
	{"a non-fatal failure of a hedge", policy(three), plays(ok(never), fails(50, codes.Unavailable), ok(50))},
	{"all fail", policy(three), plays(fails(40, codes.Unavailable))},
	{"all fail, the first as the last", policy(two), plays(fails(400, codes.Unavailable), fails(50, codes.Unavailable))},
	{"the last two fail at other times", policy(three), plays(ok(never), fails(400, codes.Unavailable), fails(50, codes.Unavailable))},
	{"push-back for a while", policy(three), plays(pushes(50, "400"), ok(50))},
	{"push-back of nothing", policy(three), plays(pushes(50, "0"), ok(50))},
	{"push-back of a hedge", policy(three), plays(ok(never), pushes(50, "300"), ok(50))},
	{"push-back: no more", policy(three), plays(ok(600), pushes(50, "-1"), ok(50))},
	{"push-back that is no number", policy(three), plays(ok(600), pushes(50, "soon"), ok(50))},
	{"push-back: no more, and nothing is out", policy(three), plays(pushes(50, "-1"), ok(50))},
	{"push-back after the last attempt", policy(two), plays(ok(600), pushes(50, "100"))},
	{"push-back with a fatal failure", policy(three), plays(play{50, codes.NotFound, "100"}, ok(50))},
	{"the deadline spans all attempts", policy(three), within(500, ok(never))},
	{"the deadline after a failure", policy(two), within(500, fails(200, codes.Unavailable), ok(never))},
	{"methods have their own policy", json.RawMessage(`{"methodConfig": [
		{"name": [{"service": "shop.Orders", "method": "Write"}], "hedgingPolicy": {` + two + `}},
		{"name": [{"service": "shop.Orders"}], "hedgingPolicy": {"maxAttempts": 3, "hedgingDelay": "0.1s"}},
		{"name": [{"service": "shop.Users", "method": "Write"}], "waitForReady": true},
		{"name": [{}], "hedgingPolicy": {"maxAttempts": 4, "hedgingDelay": "0.1s"}}]}`), []call{
		{Method: write, Timeout: 2000, plays: []play{ok(600)}},
		{Method: "/shop.Orders/Other", Timeout: 2000, plays: []play{ok(600)}},
		{Method: "/shop.Users/Write", Timeout: 2000, plays: []play{ok(600)}},
		{Method: "/shop.Users/Other", Timeout: 2000, plays: []play{ok(600)}}}},
	{"methods without a policy are sent once", policy(three), []call{{Method: "/shop.Users/GetUser", Timeout: 2000, plays: []play{ok(600)}}}},
	{"throttling", throttled(two, `"maxTokens": 4, "tokenRatio": 1`), append(times(3, plays(fails(300, codes.Unavailable))), times(3, plays(ok(300)))...)},
	{"throttling does not count fatal failures", throttled(two, `"maxTokens": 2, "tokenRatio": 0.1`), append(times(2, plays(fails(60, codes.NotFound))), plays(ok(300))...)},
	{"streams are hedged until their first message", policy(three), append(streams(ok(never), ok(50)), append(streams(ok(never), fails(50, codes.NotFound)), streams(ok(60))...)...)},
}
