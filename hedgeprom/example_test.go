package hedgeprom_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/hedgeprom"
)

func Example() {
	registry := prometheus.NewRegistry() // or prometheus.DefaultRegisterer
	metrics := hedgeprom.New()
	registry.MustRegister(metrics)

	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	client := &http.Client{Transport: hedge.New(http.DefaultTransport, hedge.WithName("shop"), hedge.WithObserver(metrics))}
	resp, err := client.Get(server.URL)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()

	families, _ := registry.Gather()
	for _, f := range families {
		fmt.Println(f.GetName())
	}
	// Output:
	// hedge_attempts_total
	// hedge_budget_ratio
	// hedge_budget_tokens
	// hedge_delay_seconds
	// hedge_denied_total
	// hedge_request_seconds
	// hedge_requests_total
}
