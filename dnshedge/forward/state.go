package forward

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
)

// temporaryFiles is the pattern of the names of files that are renamed when they are complete.
const temporaryFiles = ".forward-*"

// A stateStore is a Client or resolver that can export its learned state, measurements and cached answers, and import
// it after a restart.
type stateStore interface {
	Export(io.Writer) error
	Import(io.Reader) error
}

// loadState imports the file at path, which saveState has written, into s. It does nothing if the file does not exist.
// It returns an error only if the file exists and cannot be opened. An error of the import is logged to slog.Default.
func loadState(s stateStore, path string) error {
	f, err := os.Open(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil // the first start
	case err != nil:
		return err
	}
	defer f.Close()
	if err := s.Import(f); err != nil {
		slog.Warn("forward: starting without state", "file", path, "error", err)
	}
	return nil
}

// checkWritable returns an error if saveState cannot write the file at path, because its folder is missing or not writable,
// or because path is a folder. It changes nothing in the folder.
func checkWritable(path string) error {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return fmt.Errorf("%s is a directory", path)
	}
	f, err := os.CreateTemp(filepath.Dir(path), temporaryFiles)
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// saveState exports the learned state of s to the file at path. It replaces an existing file atomically. After an
// error, the existing file is unchanged.
func saveState(s stateStore, path string) error {
	f, err := os.CreateTemp(filepath.Dir(path), temporaryFiles)
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if err := errors.Join(s.Export(f), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
