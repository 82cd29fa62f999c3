//go:build !hedge_nogrpc

package worlds_test

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gohedge/hedge"
)

// A grpcConn is a connection for hedges. Its server answers as the server of the calls does.
type grpcConn struct {
	target string // whose name it has
	cost   int
	fault  string // "" none, down: it refuses connections, stops while calls are made, fails, late, silent, idle after a second
}

func newGRPCConns(d *generator, y *grpcNetwork) {
	if y.second {
		return
	}
	for i := range drawPart(d, "way.conns", .2, 0, 1, 2, 3) {
		name := func(s string) string { return fmt.Sprintf("conn%d.%s", i, s) }
		y.conns = append(y.conns, &grpcConn{
			target: drawPart(d, name("target"), .6, "server:80", "east:80", "west:80"),
			cost:   drawPart(d, name("cost"), .25, 0, 2, 7),
			fault:  drawPart(d, name("fault"), .4, "", "down", "stops", "fails", "late", "silent", "idle"),
		})
	}
	y.unnamed = len(y.conns) > 0 && drawFlag(d, "way.unnamed", .15)
}

// host returns the host of the server of connection i, which no primary reaches.
func (*grpcConn) host(i int) string { return "conn" + strconv.Itoa(i+1) }

// allowsHedges reports whether a call may have hedges. It may if its hedges go over the connection of the caller.
func (y *grpcNetwork) allowsHedges(c *grpcCall) bool {
	named := slices.ContainsFunc(y.conns, func(o *grpcConn) bool { return o.target == "server:80" }) || y.second || !y.unnamed
	return !y.second && len(y.conns) == 0 || named && !c.elsewhere
}

// dialConns opens the connections for hedges.
func (p *grpcPlay) dialConns(dial func(target, host string, options ...grpc.DialOption) *grpc.ClientConn) {
	for i, o := range p.w.way.conns {
		options := p.markInterceptors(strconv.Itoa(i + 1))
		if o.fault == "idle" {
			options = append(options, grpc.WithIdleTimeout(time.Second))
		}
		p.conns = append(p.conns, dial(o.target, o.host(i), options...))
	}
}

// withConns returns WithHedgeConns.
func (p *grpcPlay) withConns() hedge.GRPCOption {
	var named []string
	if !p.w.way.unnamed {
		named = append(named, "passthrough:///server:80")
	}
	var given []hedge.HedgeConn
	for i, cc := range p.conns {
		given = append(given, hedge.HedgeConn{Conn: cc, Cost: p.w.way.conns[i].cost})
	}
	return hedge.WithHedgeConns(named, given...)
}

// serveConns starts the servers of the connections for hedges.
func (p *grpcPlay) serveConns() {
	for i, o := range p.w.way.conns {
		if o.fault == "down" {
			continue
		}
		server := p.listen(o.host(i), i+1)
		p.servers = append(p.servers, server)
		if o.fault == "stops" {
			last := p.w.calls[len(p.w.calls)-1]
			at := time.Duration(p.w.past.calls)*(p.w.past.gap+10*ms) + last.at/2 + 17*ms
			time.AfterFunc(at, server.Stop)
		}
	}
}

// applyFault applies the fault of the server of a connection for hedges, and returns its error. The error differs from
// that of the server of the call.
func (p *grpcPlay) applyFault(s grpc.ServerStream, conn, number, attempt int) error {
	if conn == 0 {
		return nil
	}
	switch p.w.way.conns[conn-1].fault {
	case "fails":
		s.SetTrailer(metadata.Pairs(actKey, strconv.Itoa(attempt)))
		return status.Errorf(codes.Unavailable, "call %d attempt %d over connection %d", number, attempt, conn)
	case "late":
		_ = waitForClient(s.Context(), 300*ms)
	case "silent":
		_ = waitForClient(s.Context(), forever)
	}
	return nil
}

// costOf returns the cost of a hedge over a connection, or 0 for the cost of the call.
func (y *grpcNetwork) costOf(conn int) int {
	if conn == 0 {
		return 1
	}
	return max(1, y.conns[conn-1].cost)
}

// checkConns checks the connections of the attempts of a call.
func (j *grpcChecker) checkConns(c *grpcCall, all []*grpcArrival, say reportFunc) {
	for _, a := range all {
		switch {
		case a.attempt == 0 && a.conn > 0:
			say("3 connection", fmt.Sprintf("the primary went over connection %d for hedges", a.conn))
		case a.attempt > 0 && len(j.w.way.conns) > 0 && a.conn == 0:
			say("3 connection", "a hedge went over the caller's connection")
		case a.attempt > 0 && !j.w.way.allowsHedges(c):
			say("3 target", fmt.Sprintf("a hedge went over connection %d", a.conn))
		}
	}
}

// unseenFailures returns the largest number of attempts of a call that fail without an error of a server that has received them: because an
// interceptor refuses them, or because the server stops.
func (y *grpcNetwork) unseenFailures() (n int) {
	for _, o := range y.conns {
		if o.fault == "stops" {
			n++
		}
	}
	if y.refuses != "" {
		n++
	}
	return n
}

// mayHaveStopped reports whether the server of an attempt may have stopped while it sent its answer.
func (j *grpcChecker) mayHaveStopped(c *grpcCall, attempt int) bool {
	return slices.ContainsFunc(j.hedged.arrivals[c.number], func(a *grpcArrival) bool {
		return a.attempt == attempt && a.conn > 0 && j.w.way.conns[a.conn-1].fault == "stops"
	})
}
