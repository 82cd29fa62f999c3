package debug_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/debug"
)

func ExampleHandler() {
	transport := hedge.New(http.DefaultTransport)
	mux := http.NewServeMux()
	mux.Handle("/debug/hedge", debug.Handler(transport))

	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest("GET", "/debug/hedge", nil))
	fmt.Println(w.Code, w.Header().Get("Content-Type"))
	// Output: 200 text/html; charset=utf-8
}
