package recursor

type specialZone struct{}

func (c *core) special(name string) *specialZone { return nil }

func (z *specialZone) answer(q question) *verdict { return nil }
