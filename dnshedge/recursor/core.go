package recursor

type core struct{ fleet fleet }
