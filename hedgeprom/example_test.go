package hedgeprom_test

import (
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/hedgeprom"
)

func Example() {
	registry := prometheus.NewRegistry() // or prometheus.DefaultRegisterer
	metrics := hedgeprom.New()
	registry.MustRegister(metrics)

	base := roundTripper(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
	})
	client := &http.Client{Transport: hedge.New(base, hedge.WithName("shop"), hedge.WithObserver(metrics))}
	resp, err := client.Get("http://catalog.test/item")
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
	// hedge_budget_tokens
	// hedge_delay_seconds
	// hedge_denied_total
	// hedge_requests_total
}
