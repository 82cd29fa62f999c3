package ops_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/ops"
)

// TestReadEnvironmentMatchesPackageDoc compares the table of environment variables in the doc comment of package hedge with
// ReadEnvironment: each has the same values, and each value has the effect that its row states.
func TestReadEnvironmentMatchesPackageDoc(t *testing.T) {
	for _, variable := range []string{"HEDGE_DISABLED", "HEDGE_MODE", "HEDGE_BUDGET_PERCENT"} {
		t.Setenv(variable, "")
	}
	documented := make(map[string][]string)
	for _, row := range table(t) {
		for _, value := range row.values {
			documented[row.variable] = append(documented[row.variable], value)
			t.Setenv(row.variable, value)
			want := ops.Environment{BudgetPercent: -1}
			switch {
			case strings.Contains(row.effect, "[WithShadow]"):
				want.Mode = ops.ModeShadow
			case strings.Contains(row.effect, "[WithAudit]"):
				want.Mode = ops.ModeAudit
			case strings.Contains(row.effect, "[WithBudgetPercent]"):
				want.BudgetPercent = 400
			case strings.HasPrefix(row.effect, "sends hedges"):
				want.Mode = ops.ModeOn
			case strings.HasPrefix(row.effect, "starts disabled"):
				if want.Off = row.variable; row.variable == "HEDGE_MODE" {
					want.Mode = ops.ModeOff
				}
			default:
				require.Equal(t, "no effect", row.effect, "%s=%s", row.variable, value)
			}
			assert.Equal(t, want, ops.ReadEnvironment(true), "%s=%s: %s", row.variable, value, row.effect)
			t.Setenv(row.variable, "")
		}
	}
	for variable, values := range known(t) {
		for _, value := range values {
			if value != "" && !slices.Contains(documented[variable], value) {
				t.Errorf("%s=%s is not in the table of hedge.go", variable, value)
			}
		}
	}
}

func TestReadEnvironmentAllowsNoHedgesForInvalidBudget(t *testing.T) {
	for value, want := range map[string]ops.Environment{
		" 2.5 ": {BudgetPercent: 2.5},
		"0":     {},
		"-3":    {BudgetPercent: -1, Off: "HEDGE_BUDGET_PERCENT", Invalid: []string{"HEDGE_BUDGET_PERCENT"}},
		"401":   {BudgetPercent: -1, Off: "HEDGE_BUDGET_PERCENT", Invalid: []string{"HEDGE_BUDGET_PERCENT"}},
		"NaN":   {BudgetPercent: -1, Off: "HEDGE_BUDGET_PERCENT", Invalid: []string{"HEDGE_BUDGET_PERCENT"}},
		"5%":    {BudgetPercent: -1, Off: "HEDGE_BUDGET_PERCENT", Invalid: []string{"HEDGE_BUDGET_PERCENT"}},
	} {
		t.Setenv("HEDGE_BUDGET_PERCENT", value)
		assert.Equal(t, want, ops.ReadEnvironment(true), value)
		assert.Equal(t, ops.Environment{BudgetPercent: -1, Unused: "HEDGE_BUDGET_PERCENT"}, ops.ReadEnvironment(false), value)
	}
}

func TestLogEnvironmentNamesAllInvalidVariables(t *testing.T) {
	variables := []string{"HEDGE_MODE", "HEDGE_BUDGET_PERCENT", "HEDGE_DISABLED"}
	for _, variable := range variables {
		t.Setenv(variable, "maybe")
	}
	e := ops.ReadEnvironment(true)
	assert.Equal(t, ops.Environment{Mode: ops.ModeShadow, BudgetPercent: -1, Off: "HEDGE_DISABLED", Invalid: variables}, e)
	var logged strings.Builder
	ops.NewLog(slog.New(slog.NewTextHandler(&logged, nil)), "hedge", "func", "", new(atomic.Int64)).LogEnvironment(e)
	for _, variable := range variables {
		assert.Contains(t, logged.String(), "variable="+variable+" value=maybe")
	}
}

func TestModeOfEnvironmentReplacesConfiguredShadowMode(t *testing.T) {
	for value, want := range map[string][2]bool{"": {false, true}, "on": {false, false}, "shadow": {true, true}, "audit": {false, true}, "off": {false, true}} {
		t.Setenv("HEDGE_MODE", value)
		e := ops.ReadEnvironment(true)
		assert.Equal(t, want, [2]bool{e.IsShadow(false), e.IsShadow(true)}, value)
	}
}

// A row is a row of the table, such as "//        HEDGE_MODE  shadow or observe  does what [WithShadow] does". A row without a variable
// belongs to the variable of the row above.
type row struct {
	variable string
	values   []string
	effect   string
}

func table(t *testing.T) (rows []row) {
	file, err := parser.ParseFile(token.NewFileSet(), "../../hedge.go", nil, parser.ParseComments|parser.PackageClauseOnly)
	require.NoError(t, err)
	column := regexp.MustCompile(` {2,}`)
	variable := ""
	for line := range strings.Lines(file.Doc.Text()) {
		text, indented := strings.CutPrefix(line, "\t")
		if !indented || variable == "" && !strings.HasPrefix(text, "HEDGE_") {
			continue
		}
		cells := column.Split(strings.TrimSpace(text), -1)
		if strings.HasPrefix(text, "HEDGE_") {
			variable, cells = cells[0], cells[1:]
		}
		require.Len(t, cells, 2, "%q is no row of two cells", text)
		values := strings.FieldsFunc(strings.ReplaceAll(cells[0], " or ", ", "), func(c rune) bool { return c == ',' || c == ' ' })
		if _, bounds, isRange := strings.Cut(cells[0], "0 to "); isRange {
			values = []string{bounds}
		}
		rows = append(rows, row{variable, values, cells[1]})
	}
	require.NotEmpty(t, rows)
	return rows
}

// known returns the values for which the switch statements of environment.go have cases, by variable.
func known(t *testing.T) map[string][]string {
	src, err := os.ReadFile("environment.go")
	require.NoError(t, err)
	file, err := parser.ParseFile(token.NewFileSet(), "environment.go", src, parser.SkipObjectResolution)
	require.NoError(t, err)
	values := make(map[string][]string)
	ast.Inspect(file, func(n ast.Node) bool {
		s, ok := n.(*ast.SwitchStmt)
		if !ok {
			return true
		}
		call, ok := s.Tag.(*ast.CallExpr) // word(os.Getenv("HEDGE_DISABLED")), or word(name) in ParseMode
		if !ok {
			return true
		}
		variable := "HEDGE_MODE"
		if read, ok := call.Args[0].(*ast.CallExpr); ok {
			variable = text(t, read.Args[0])
		}
		for _, c := range s.Body.List {
			for _, value := range c.(*ast.CaseClause).List {
				values[variable] = append(values[variable], text(t, value))
			}
		}
		return false
	})
	require.Len(t, values, 2)
	return values
}

func text(t *testing.T, e ast.Expr) string {
	s, err := strconv.Unquote(e.(*ast.BasicLit).Value)
	require.NoError(t, err)
	return s
}
