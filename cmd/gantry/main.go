// Command gantry is Apache RocketMQ's message store in Go: it looks into store
// directories and writes them. See gantry --help.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/gantrymq/gantry/internal/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(cli.Main(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
