package system

// Adapter is a network adapter of Windows.
type Adapter = adapter

// AdapterServers returns the servers of a machine with these adapters.
var AdapterServers = adapterServers
