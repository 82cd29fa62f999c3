package limit

// Headers by which clients that hedge and servers with a Limiter recognise each other. The names are in canonical form.
const (
	AttemptHeader = "Hedge-Attempt" // of a request: the number of the hedge
	LimitHeader   = "Hedge-Limit"   // of a response: 1 if the server has a Limiter
	RefusedHeader = "Hedge-Refused" // of a response: 1 if the Limiter has refused the hedge
)
