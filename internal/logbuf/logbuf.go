// Package logbuf keeps what a logger or a process writes, for tests that read it
// meanwhile.
package logbuf

import (
	"bytes"
	"sync"
)

// Buffer is an io.Writer for any number of goroutines. The zero value is empty.
type Buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// Count is how often text was written so far.
func (b *Buffer) Count(text string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Count(b.text.Bytes(), []byte(text))
}

// String is what was written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
