package limit

// Headers by which a hedging client and a server with a Limiter recognise each other, in canonical form.
const (
	AttemptHeader = "Hedge-Attempt" // request header: number of the hedge
	LimitHeader   = "Hedge-Limit"   // response header: 1 if the server has a Limiter
	RefusedHeader = "Hedge-Refused" // response header: 1 if the Limiter has refused the hedge
)
